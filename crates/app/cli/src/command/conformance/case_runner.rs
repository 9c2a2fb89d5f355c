//! Runs one case against the server under test.

use std::{collections::BTreeMap, time::Duration};

use exec_client::connect::ServerConnector;
use exec_wire::{
    base64_bytes, error::ErrorCode, initialize::ProtocolExtension, method::notification,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    conformance_case::{CallStep, CaseStep, ConformanceCase, FinishStep},
    message_pattern::{self, PatternMismatch, SavedValues, shortened},
    raw_connection::{RawConnection, RawConnectionError},
};

/// Name of the connection that every case starts with.
const FIRST: &str = "a";
/// Time between attempts to resume a session.
const RESUME_INTERVAL: Duration = Duration::from_millis(20);

/// A case in progress.
#[derive(Debug)]
pub(super) struct CaseRunner<'a> {
    connector: &'a dyn ServerConnector,
    wait: Duration,
    connections: BTreeMap<String, RawConnection>,
    current: String,
    saved: SavedValues,
    /// Events of processes that earlier steps expected.
    seen_events: Vec<Value>,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error(transparent)]
    Connection(#[from] RawConnectionError),
    #[error(transparent)]
    Mismatch(#[from] PatternMismatch),
    /// Peer: refused a request.
    #[error("{method} failed: {error}")]
    Refused { method: String, error: String },
    /// Peer: granted a request that it has to refuse.
    #[error("{method} must fail, and returned {result}")]
    Granted { method: String, result: String },
    /// Peer: numbered the events of a process wrongly.
    #[error("events of process `{process_id}`: {reason}")]
    Events { process_id: String, reason: String },
    /// Us: the case is wrong.
    #[error("the case uses `{0}`, which it has not defined")]
    Undefined(String),
}

/// The step that failed, counted from one, and why.
#[derive(Debug, thiserror::Error)]
#[error("step {step}: {error}")]
pub(super) struct CaseFailure {
    step: usize,
    error: StepError,
}

impl<'a> CaseRunner<'a> {
    /// Runs a case. `dir` is the URI of an empty directory on the server's host.
    pub(super) async fn run(
        connector: &'a dyn ServerConnector,
        wait: Duration,
        dir: &str,
        case: &ConformanceCase,
    ) -> Result<(), CaseFailure> {
        let native = dir.strip_prefix("file://").unwrap_or(dir);
        let saved = [("dir", dir), ("nativeDir", native)];
        let saved = saved.map(|(name, value)| (name.to_owned(), value.into()));
        let mut runner = Self {
            connector,
            wait,
            connections: BTreeMap::new(),
            current: FIRST.to_owned(),
            saved: saved.into(),
            seen_events: Vec::new(),
        };
        let started = runner.start(case).await;
        started.map_err(|error| CaseFailure { step: 0, error })?;
        for (index, step) in case.steps.iter().enumerate() {
            let done = runner.perform(step).await;
            done.map_err(|error| CaseFailure {
                step: index + 1,
                error,
            })?;
        }
        Ok(())
    }

    async fn start(&mut self, case: &ConformanceCase) -> Result<(), StepError> {
        self.connect(FIRST).await?;
        if case.handshake {
            let extensions = match case.extensions[..] {
                [] => json!({}),
                [..] => json!({ "extensions": case.extensions }),
            };
            self.handshake(extensions).await?;
        }
        Ok(())
    }

    async fn perform(&mut self, step: &CaseStep) -> Result<(), StepError> {
        match step {
            CaseStep::Connect(name) => self.connect(name).await,
            CaseStep::On(name) => {
                name.clone_into(&mut self.current);
                self.connection().map(drop)
            }
            CaseStep::Drop(name) => {
                let dropped = self.connections.remove(name);
                dropped
                    .map(drop)
                    .ok_or_else(|| StepError::Undefined(name.clone()))
            }
            CaseStep::Handshake(members) => {
                let members = self.substituted(members)?;
                self.handshake(members).await
            }
            CaseStep::Send(message) => {
                let text = message_pattern::into_text(self.substituted(message)?);
                Ok(self.connection()?.send(&text).await?)
            }
            CaseStep::Call(call) => self.call(call).await,
            CaseStep::Expect(pattern) => self.expect(pattern).await,
            CaseStep::Finish(finish) => self.finish(finish).await,
        }
    }

    async fn connect(&mut self, name: &str) -> Result<(), StepError> {
        let connection = RawConnection::open(self.connector, self.wait).await?;
        self.connections.insert(name.to_owned(), connection);
        name.clone_into(&mut self.current);
        Ok(())
    }

    fn connection(&mut self) -> Result<&mut RawConnection, StepError> {
        let connection = self.connections.get_mut(&self.current);
        connection.ok_or_else(|| StepError::Undefined(self.current.clone()))
    }

    fn substituted(&self, value: &Value) -> Result<Value, StepError> {
        message_pattern::substitute(value, &self.saved).map_err(StepError::Undefined)
    }

    async fn handshake(&mut self, members: Value) -> Result<(), StepError> {
        let result = handshake(self.connection()?, members).await?;
        self.saved
            .insert("session".to_owned(), result["sessionId"].clone());
        Ok(())
    }

    async fn call(&mut self, step: &CallStep) -> Result<(), StepError> {
        let CallStep {
            method,
            params,
            result,
            error,
        } = step;
        let params = params
            .as_ref()
            .map(|params| self.substituted(params))
            .transpose()?;
        let response = self.connection()?.call(method, params.as_ref()).await?;
        match (error, response.get("error")) {
            (None, None) => {
                let any = json!({ "$not": { "$absent": true } });
                let pattern = self.substituted(result.as_ref().unwrap_or(&any))?;
                let mut found = response.get("result").cloned();
                // Raw bytes are checked like a member.
                if let (Some(Value::Object(members)), Some(data)) =
                    (&mut found, response.get("rawData"))
                {
                    members.insert("rawData".to_owned(), data.clone());
                }
                message_pattern::check(&pattern, found.as_ref(), "result", &mut self.saved)?;
            }
            (None, Some(error)) => {
                return Err(StepError::Refused {
                    method: method.clone(),
                    error: shortened(error),
                });
            }
            (Some(_), None) => {
                return Err(StepError::Granted {
                    method: method.clone(),
                    result: shortened(&response["result"]),
                });
            }
            (Some(code), Some(error)) => {
                let pattern = json!({ "code": code, "message": { "$type": "string" } });
                message_pattern::check(&pattern, Some(error), "error", &mut self.saved)?;
            }
        }
        Ok(())
    }

    async fn expect(&mut self, pattern: &Value) -> Result<(), StepError> {
        let pattern = self.substituted(pattern)?;
        let message = match (pattern.get("id"), pattern.get("method")) {
            (Some(id), None) => self.connection()?.response(id).await?,
            _ => {
                let mut ignored = SavedValues::new();
                let matches = |message: &Value| {
                    message_pattern::check(&pattern, Some(message), "", &mut ignored).is_ok()
                };
                self.connection()?
                    .find(&shortened(&pattern), matches)
                    .await?
            }
        };
        message_pattern::check(&pattern, Some(&message), "message", &mut self.saved)?;
        if is_process_event(&message) {
            self.seen_events.push(message);
        }
        Ok(())
    }

    async fn finish(&mut self, step: &FinishStep) -> Result<(), StepError> {
        let FinishStep {
            process_id,
            stdout,
            stderr,
            pty,
            exited,
        } = step;
        let seen = self
            .seen_events
            .extract_if(.., |event| is_event_of(event, process_id));
        let seen = seen.collect();
        let events = ProcessEventLog::collect(self.connection()?, process_id, seen).await?;
        for (stream, pattern) in [("stdout", stdout), ("stderr", stderr), ("pty", pty)] {
            if let Some(pattern) = pattern {
                let pattern = self.substituted(pattern)?;
                let text = Value::String(events.text(stream));
                message_pattern::check(&pattern, Some(&text), stream, &mut self.saved)?;
            }
        }
        if let Some(pattern) = exited {
            message_pattern::check(pattern, Some(&events.exited), "exited", &mut self.saved)?;
        }
        Ok(())
    }
}

/// Sends `initialize` and `initialized`, and returns the result.
pub(super) async fn handshake(
    connection: &mut RawConnection,
    members: Value,
) -> Result<Value, StepError> {
    let mut params = json!({ "clientName": "exec-server conformance" });
    if let (Value::Object(params), Value::Object(members)) = (&mut params, members) {
        params.extend(members);
    }
    let deadline = Instant::now() + connection.wait;
    let mut response = connection.call("initialize", Some(&params)).await?;
    // The server may not know yet that the session has lost its connection.
    while response["error"]["code"] == ErrorCode::SESSION_ATTACHED.0 && Instant::now() < deadline {
        sleep(RESUME_INTERVAL).await;
        response = connection.call("initialize", Some(&params)).await?;
    }
    if let Some(error) = response.get("error") {
        return Err(StepError::Refused {
            method: "initialize".to_owned(),
            error: shortened(error),
        });
    }
    let initialized = json!({ "method": notification::INITIALIZED, "params": {} });
    connection.send(&initialized.to_string()).await?;
    Ok(response["result"].take())
}

fn is_event_of(message: &Value, process_id: &str) -> bool {
    message["params"]["processId"] == process_id && is_process_event(message)
}

/// Returns whether a message is one of the numbered events of a process.
fn is_process_event(message: &Value) -> bool {
    let numbered = [
        notification::PROCESS_OUTPUT,
        notification::PROCESS_EXITED,
        notification::PROCESS_CLOSED,
    ];
    message["method"]
        .as_str()
        .is_some_and(|method| numbered.contains(&method))
}

/// Returns the extensions in the result of `initialize`.
pub(super) fn granted(result: &Value) -> Vec<ProtocolExtension> {
    serde_json::from_value(result["extensions"].clone()).unwrap_or_default()
}

/// Events of a process, in the order of their numbers.
#[derive(Debug)]
struct ProcessEventLog {
    output: BTreeMap<u64, (String, Vec<u8>)>,
    exited: Value,
}

impl ProcessEventLog {
    /// Receives the events of a process until all up to its close are there, in any order.
    async fn collect(
        connection: &mut RawConnection,
        process_id: &str,
        seen: Vec<Value>,
    ) -> Result<Self, StepError> {
        let mut seen = seen.into_iter();
        let invalid = |reason: String| StepError::Events {
            process_id: process_id.to_owned(),
            reason,
        };
        let mut output = BTreeMap::new();
        let (mut exited, mut closed) = (None, None);
        let what = format!("an event of process `{process_id}`");
        loop {
            let is_complete = |last: u64| {
                let count = output.len() as u64 + u64::from(exited.is_some()) + 1;
                count >= last
            };
            if closed.is_some_and(is_complete) {
                break;
            }
            let mut event = match seen.next() {
                Some(event) => event,
                None => {
                    let is_event = |message: &Value| is_event_of(message, process_id);
                    connection.find(&what, is_event).await?
                }
            };
            let data = event["rawData"].take();
            let params = event["params"].take();
            let Some(seq @ 1..) = params["seq"].as_u64() else {
                return Err(invalid(format!("no number in {}", shortened(&params))));
            };
            let is_duplicate = match event["method"].as_str() {
                Some(notification::PROCESS_EXITED) => exited.replace((seq, params)).is_some(),
                Some(notification::PROCESS_CLOSED) => closed.replace(seq).is_some(),
                _ => {
                    let chunk = [&data, &params["chunk"]]
                        .into_iter()
                        .find_map(Value::as_str);
                    let bytes = chunk
                        .and_then(|chunk| base64_bytes::decode(chunk.as_bytes()).ok())
                        .ok_or_else(|| invalid(format!("chunk {seq} is not base64")))?;
                    let stream = params["stream"].as_str().unwrap_or_default().to_owned();
                    output.insert(seq, (stream, bytes.to_vec())).is_some()
                }
            };
            if is_duplicate {
                return Err(invalid(format!("event {seq} came twice")));
            }
        }
        let (Some((exit_seq, exited)), Some(close_seq)) = (exited, closed) else {
            return Err(invalid("closed without exited".to_owned()));
        };
        let mut numbers: Vec<u64> = output
            .keys()
            .copied()
            .chain([exit_seq, close_seq])
            .collect();
        numbers.sort_unstable();
        if !numbers.iter().copied().eq(1..=close_seq) {
            return Err(invalid(format!(
                "numbers {numbers:?}, and closed is {close_seq}"
            )));
        }
        Ok(Self { output, exited })
    }

    /// Returns the output of a stream.
    fn text(&self, stream: &str) -> String {
        let chunks = self.output.values().filter(|(name, _)| name == stream);
        let bytes: Vec<u8> = chunks
            .flat_map(|(_, bytes)| bytes.iter().copied())
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
