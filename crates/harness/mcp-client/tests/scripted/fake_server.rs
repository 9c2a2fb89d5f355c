//! A scripted server.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use exec_core::output_log::{
    ExitInfo, FollowOptions, FollowedLog, FollowerId, LogPage, OutputLog, OutputSnapshot,
    RetentionLimits,
};
use exec_env::{
    environment::{Command, ExecBackend, StartError, StartedProcess},
    process::{
        EventStream, ExecProcess, ExecProcessEvent, OutputHold, OutputReadRequest, ProcessError,
        ProcessStatus,
    },
};
use exec_mcp_client::config::McpServerConfig;
use exec_wire::{
    environment::EnvironmentInfo,
    error::RpcError,
    id::{OutputSeq, ProcessId, WriteId},
    process::{
        ExitCause, OutputStream, ProcessSignal, TerminalSize, TerminateMode, WaitUntil, WriteStatus,
    },
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt, ready},
    stream,
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::{self, timeout},
};

/// Input of the server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Input {
    Data(Bytes),
    End,
    Terminate(TerminateMode),
    /// The last handle was dropped.
    Dropped,
}

/// The server's side.
pub(crate) struct FakeServer {
    shared: Arc<FakeState>,
    input: mpsc::UnboundedReceiver<Input>,
    partial: Vec<u8>,
}

#[derive(Debug)]
struct FakeState {
    log: Mutex<FollowedLog>,
    failure: Mutex<Option<ProcessError>>,
    exit: watch::Sender<Option<ExitInfo>>,
    reading: watch::Sender<bool>,
    /// Number of accepted writes, and the status of later ones.
    stdin: Mutex<(usize, WriteStatus)>,
    command: Mutex<Option<Command>>,
}

/// The caller's side.
#[derive(Debug)]
pub(crate) struct FakeProcess {
    id: ProcessId,
    shared: Arc<FakeState>,
    input: mpsc::UnboundedSender<Input>,
}

/// Starts its only process.
#[derive(Debug)]
pub(crate) struct FakeBackend(Mutex<Option<FakeProcess>>);

pub(crate) fn config() -> McpServerConfig {
    McpServerConfig::new("fake", "fake-server", "file:///".parse().unwrap())
}

pub(crate) fn id() -> ProcessId {
    ProcessId::new("mcp").unwrap()
}

pub(crate) fn pair() -> (FakeServer, FakeBackend) {
    let shared = Arc::new(FakeState {
        log: Mutex::new(FollowedLog::new(OutputLog::new(RetentionLimits::default()))),
        failure: Mutex::new(None),
        exit: watch::Sender::new(None),
        reading: watch::Sender::new(true),
        stdin: Mutex::new((0, WriteStatus::Accepted)),
        command: Mutex::new(None),
    });
    let (input, received) = mpsc::unbounded_channel();
    let process = FakeProcess {
        id: id(),
        shared: Arc::clone(&shared),
        input,
    };
    let server = FakeServer {
        shared,
        input: received,
        partial: Vec::new(),
    };
    (server, FakeBackend(Mutex::new(Some(process))))
}

impl FakeServer {
    pub(crate) async fn next_input(&mut self) -> Input {
        within("the server gets input", self.input.recv())
            .await
            .unwrap_or(Input::Dropped)
    }

    /// Waits for the next message.
    pub(crate) async fn next_message(&mut self) -> Value {
        loop {
            if let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=end).collect();
                return serde_json::from_slice(&line).unwrap();
            }
            match self.next_input().await {
                Input::Data(data) => self.partial.extend(data),
                other @ (Input::End | Input::Terminate(_) | Input::Dropped) => {
                    panic!("expected data: {other:?}")
                }
            }
        }
    }

    /// Waits for a request with this method and returns its id.
    pub(crate) async fn expect_request(&mut self, method: &str) -> Value {
        let message = self.next_message().await;
        assert_eq!(message["method"], method, "{message}");
        message["id"].clone()
    }

    pub(crate) fn send(&self, message: &Value) {
        self.write_stdout(format!("{message}\n").as_bytes());
    }

    pub(crate) fn respond(&self, id: &Value, result: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    /// Completes the handshake.
    pub(crate) async fn complete_handshake(&mut self) {
        let id = self.expect_request("initialize").await;
        self.respond(&id, &initialized());
        let initialized = self.next_message().await;
        assert_eq!(initialized["method"], "notifications/initialized");
    }

    pub(crate) fn write_stdout(&self, data: &[u8]) {
        self.writes(OutputStream::Stdout, data);
    }

    pub(crate) fn write_stderr(&self, text: &str) {
        self.writes(OutputStream::Stderr, text.as_bytes());
    }

    fn writes(&self, stream: OutputStream, data: &[u8]) {
        let data = Bytes::copy_from_slice(data);
        let mut log = self.shared.log.lock().unwrap();
        let written = log.record(|log| log.append(stream, data));
        assert!(written.is_some(), "the output is not closed");
    }

    pub(crate) fn exits(&self, code: i32, signal: Option<&'static str>) {
        let exit = ExitInfo {
            code,
            signal,
            cause: ExitCause::Exit,
            usage: None,
            sandbox_denied: false,
        };
        let recorded = exit.clone();
        self.shared
            .log
            .lock()
            .unwrap()
            .record(|log| log.record_exit(recorded));
        self.shared.exit.send_replace(Some(exit));
    }

    pub(crate) fn closes(&self) {
        let mut log = self.shared.log.lock().unwrap();
        assert!(log.record(OutputLog::record_close).is_some());
    }

    pub(crate) fn lose(&self, error: ProcessError) {
        *self.shared.failure.lock().unwrap() = Some(error);
        self.shared.log.lock().unwrap().record(|_| ());
    }

    pub(crate) fn reads(&self, reading: bool) {
        self.shared.reading.send_replace(reading);
    }

    pub(crate) fn set_write_status(&self, status: WriteStatus) {
        self.set_write_status_after(0, status);
    }

    pub(crate) fn set_write_status_after(&self, accepted: usize, status: WriteStatus) {
        *self.shared.stdin.lock().unwrap() = (accepted, status);
    }

    pub(crate) fn is_held(&self) -> bool {
        self.shared.log.lock().unwrap().is_backpressured()
    }

    pub(crate) fn command(&self) -> Command {
        self.shared.command.lock().unwrap().clone().unwrap()
    }
}

pub(crate) fn initialized() -> Value {
    json!({
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "fake", "version": "0"},
    })
}

impl FakeProcess {
    fn log(&self) -> MutexGuard<'_, FollowedLog> {
        self.shared.log.lock().unwrap()
    }

    fn input(&self, input: Input) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        let (sender, shared) = (self.input.clone(), Arc::clone(&self.shared));
        async move {
            let mut reading = shared.reading.subscribe();
            reading.wait_for(|reading| *reading).await.unwrap();
            let status = match &mut *shared.stdin.lock().unwrap() {
                (0, status) => *status,
                (accepted, _) => {
                    *accepted -= 1;
                    WriteStatus::Accepted
                }
            };
            if status == WriteStatus::Accepted {
                sender.send(input).ok();
            }
            Ok(status)
        }
        .boxed()
    }
}

impl Drop for FakeProcess {
    fn drop(&mut self) {
        self.input.send(Input::Dropped).ok();
    }
}

impl ExecBackend for FakeBackend {
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        let Some(process) = self.0.lock().unwrap().take() else {
            return ready(Err(StartError::Cancelled)).boxed();
        };
        *process.shared.command.lock().unwrap() = Some(command);
        ready(Ok(StartedProcess {
            process: Arc::new(process),
            sandbox_type: None,
        }))
        .boxed()
    }

    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>> {
        ready(Err(RpcError::invalid_params(
            "no environment info".to_owned(),
        )))
        .boxed()
    }
}

impl ExecProcess for FakeProcess {
    fn id(&self) -> &ProcessId {
        &self.id
    }

    fn status(&self) -> ProcessStatus {
        let log = self.log();
        let log = log.log();
        ProcessStatus {
            exit: log.exit().cloned(),
            closed: log.is_closed(),
            tree_alive: !log.is_closed(),
            next_seq: log.next_seq(),
            retained_bytes: log.retained_bytes(),
            os_pid: None,
            started_at_ms: 0,
        }
    }

    fn follow(&self, follow: FollowOptions) -> EventStream {
        let follower = Follower(Arc::clone(&self.shared), self.log().follow(follow));
        let mut failed = false;
        stream::poll_fn(move |cx| {
            let Follower(shared, id) = &follower;
            match shared.log.lock().unwrap().poll_event(*id, cx) {
                Poll::Ready(followed) => Poll::Ready(followed.event.map(ExecProcessEvent::from)),
                Poll::Pending => match shared.failure.lock().unwrap().clone() {
                    None => Poll::Pending,
                    Some(_) if failed => Poll::Ready(None),
                    Some(error) => {
                        failed = true;
                        Poll::Ready(Some(ExecProcessEvent::Failed(error)))
                    }
                },
            }
        })
        .boxed()
    }

    fn hold(&self, _: OutputSeq) -> Box<dyn OutputHold> {
        panic!("not used by these tests")
    }

    fn read(&self, read: OutputReadRequest) -> BoxFuture<'_, Result<LogPage, ProcessError>> {
        ready(Ok(self.log().log().page(read.after, read.max_bytes))).boxed()
    }

    fn write(
        &self,
        _: Option<WriteId>,
        data: Bytes,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        self.input(Input::Data(data))
    }

    fn close_stdin(
        &self,
        _: Option<WriteId>,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        self.input(Input::End)
    }

    fn resize(&self, _: TerminalSize) -> BoxFuture<'static, Result<(), ProcessError>> {
        ready(Err(ProcessError::NoTerminal(self.id.clone()))).boxed()
    }

    fn signal(&self, _: ProcessSignal) -> BoxFuture<'static, Result<(), ProcessError>> {
        ready(Ok(())).boxed()
    }

    fn terminate(&self, mode: TerminateMode) -> BoxFuture<'static, Result<bool, ProcessError>> {
        self.input.send(Input::Terminate(mode)).ok();
        ready(Ok(true)).boxed()
    }

    fn wait(
        &self,
        _: WaitUntil,
        timeout: Option<Duration>,
    ) -> BoxFuture<'static, Result<ProcessStatus, ProcessError>> {
        let mut exit = self.shared.exit.subscribe();
        let mut status = self.status();
        async move {
            let ended = exit.wait_for(Option::is_some);
            let limit = timeout.unwrap_or(Duration::MAX);
            if let Ok(Ok(exit)) = time::timeout(limit, ended).await {
                status.exit = exit.clone();
            }
            Ok(status)
        }
        .boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<OutputSnapshot, ProcessError>> {
        ready(Ok(self.log().log().snapshot())).boxed()
    }
}

/// Follows until it is dropped.
struct Follower(Arc<FakeState>, FollowerId);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.log.lock().unwrap().unfollow(self.1);
    }
}

/// Timeout on a loaded machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a future with a timeout.
#[track_caller]
pub(crate) fn within<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match timeout(TEST_TIMEOUT, future).await {
            Ok(output) => output,
            Err(_) => panic!("{what}: did not happen within {TEST_TIMEOUT:?}, at {caller}"),
        }
    }
}
