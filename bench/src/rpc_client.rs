//! One initialized connection to a server, and prepared requests.
//!
//! Preparing a request outside of timed code keeps the cost of sending it low.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::rpc_message::{ResponseView, ServerEvent};
use crate::websocket::WebSocket;

/// An initialized connection that numbers its requests.
#[derive(Debug)]
pub(crate) struct RpcClient {
    socket: WebSocket,
    last_id: u64,
    granted: Vec<String>,
}

impl RpcClient {
    /// Connects and initializes, requesting `extensions`; see [`Self::granted`].
    pub(crate) fn connect(url: &str, extensions: &[&str]) -> Result<Self> {
        let socket = WebSocket::connect(url)?;
        let mut client = Self {
            socket,
            last_id: 1,
            granted: Vec::new(),
        };
        let mut params = json!({"clientName": "exec-bench"});
        if !extensions.is_empty() {
            params["extensions"] = json!(extensions);
        }
        let request = json!({"id": 1, "method": "initialize", "params": params});
        client.socket.queue(request.to_string().as_bytes());
        client.socket.flush()?;
        let response: Value = serde_json::from_slice(client.socket.next_message()?)
            .context("the response to initialize is not JSON")?;
        ensure!(
            response["result"]["sessionId"].is_string(),
            "initialize refused: {response}"
        );
        if let Some(granted) = response["result"]["extensions"].as_array() {
            client
                .granted
                .extend(granted.iter().filter_map(Value::as_str).map(str::to_owned));
        }
        client
            .socket
            .queue(br#"{"method":"initialized","params":{}}"#);
        client.socket.flush()?;
        Ok(client)
    }

    /// Queues the start of a process and returns the number in its process id.
    pub(crate) fn queue_start(&mut self, start: &PreparedStart) -> u64 {
        self.last_id += 1;
        self.socket.queue(start.to_json(self.last_id).as_bytes());
        self.last_id
    }

    /// Queues a write of one byte (a newline) to a process.
    pub(crate) fn queue_write(&mut self, process: u64) {
        self.last_id += 1;
        let id = self.last_id;
        let request = format!(
            "{{\"id\":{id},\"method\":\"process/write\",\"params\":{{\"processId\":\"b{process}\",\
             \"chunk\":\"Cg==\",\"writeId\":\"{id}\"}}}}"
        );
        self.socket.queue(request.as_bytes());
    }

    /// Queues the termination of a process.
    pub(crate) fn queue_terminate(&mut self, process: u64) {
        self.last_id += 1;
        let id = self.last_id;
        let request = format!(
            r#"{{"id":{id},"method":"process/terminate","params":{{"processId":"b{process}"}}}}"#
        );
        self.socket.queue(request.as_bytes());
    }

    /// Queues any request.
    pub(crate) fn queue_request(&mut self, request: &PreparedRequest) {
        self.last_id += 1;
        request.queue(self.last_id, &mut self.socket);
    }

    /// Sends the queued requests.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.socket.flush()
    }

    /// Waits for the next message.
    pub(crate) fn next_event(&mut self) -> Result<ServerEvent> {
        ServerEvent::parse(self.socket.next_message()?)
    }

    /// Returns the next message if it has already arrived.
    pub(crate) fn buffered_event(&mut self) -> Result<Option<ServerEvent>> {
        self.socket
            .buffered_message()?
            .map(ServerEvent::parse)
            .transpose()
    }

    /// Waits for the next response, skipping notifications.
    pub(crate) fn next_response(&mut self) -> Result<ResponseView<'_>> {
        let is_response = |message: &[u8]| Ok(ResponseView::parse(message)?.is_some());
        ResponseView::parse(self.socket.next_matching(is_response)?)?.context("no response")
    }

    /// Returns the next message if it has already arrived and is a response.
    pub(crate) fn buffered_response(&mut self) -> Result<Option<ResponseView<'_>>> {
        match self.socket.buffered_message()? {
            Some(message) => ResponseView::parse(message),
            None => Ok(None),
        }
    }

    /// Sends a request and waits for its response. No other request may be pending.
    pub(crate) fn call(&mut self, request: &PreparedRequest) -> Result<ResponseView<'_>> {
        self.queue_request(request);
        self.flush()?;
        self.next_response()
    }

    /// Waits for the next message for at most `limit`.
    pub(crate) fn message_within(&mut self, limit: Duration) -> Result<Option<&[u8]>> {
        self.socket.message_within(limit)
    }

    /// Starts a process and waits for `process/closed` and the response.
    ///
    /// Returns the time from before the request was sent until `process/closed` arrived.
    pub(crate) fn run_to_close(&mut self, start: &PreparedStart) -> Result<Duration> {
        let started_at = Instant::now();
        let _process: u64 = self.queue_start(start);
        self.flush()?;
        self.time_until(started_at, |event| matches!(event, ServerEvent::Closed))
    }

    /// Writes one byte to a process that echoes it, and waits for the echo and the response.
    ///
    /// Returns the time from before the request was sent until the output arrived.
    pub(crate) fn echo(&mut self, process: u64) -> Result<Duration> {
        let started_at = Instant::now();
        self.queue_write(process);
        self.flush()?;
        self.time_until(started_at, |event| matches!(event, ServerEvent::Output(_)))
    }

    /// Waits for `responses` responses and for `closed` processes to close.
    pub(crate) fn await_completion(&mut self, mut responses: u64, mut closed: u64) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while responses > 0 || closed > 0 {
            match self.next_event()? {
                ServerEvent::Response => responses = responses.saturating_sub(1),
                ServerEvent::Closed => closed = closed.saturating_sub(1),
                ServerEvent::Output(_) | ServerEvent::Other => {}
            }
            if Instant::now() > deadline {
                bail!("missing {responses} responses and {closed} process/closed");
            }
        }
        Ok(())
    }

    /// Returns whether the server granted an extension.
    pub(crate) fn granted(&self, extension: &str) -> bool {
        self.granted.iter().any(|granted| granted == extension)
    }

    /// Waits for the expected event and for one response. Returns the time until the event.
    fn time_until(
        &mut self,
        started_at: Instant,
        is_expected: impl Fn(ServerEvent) -> bool,
    ) -> Result<Duration> {
        let (mut elapsed, mut has_response) = (None, false);
        loop {
            let event = self.next_event()?;
            if is_expected(event) {
                elapsed.get_or_insert_with(|| started_at.elapsed());
            } else if event == ServerEvent::Response {
                has_response = true;
            }
            if let (Some(elapsed), true) = (elapsed, has_response) {
                return Ok(elapsed);
            }
            ensure!(
                started_at.elapsed() < LIMIT,
                "server sends messages but no response"
            );
        }
    }
}

/// Longest wait for one exchange while messages keep arriving. The socket's timeout bounds silence.
const LIMIT: Duration = Duration::from_secs(30);

/// A serialized request without its id.
#[derive(Clone, Debug)]
pub(crate) struct PreparedRequest {
    /// The JSON after the id, including the closing brace.
    suffix: String,
    /// The data member of a binary message.
    binary_data: Option<Vec<u8>>,
}

impl PreparedRequest {
    /// Prepares a request.
    pub(crate) fn new(method: &str, params: &Value) -> Self {
        let message = json!({"method": method, "params": params});
        Self {
            suffix: message.to_string().split_off(1),
            binary_data: None,
        }
    }

    /// Prepares a binary request. `params` do not contain the data member.
    pub(crate) fn binary(method: &str, params: &Value, data: Vec<u8>) -> Self {
        Self {
            binary_data: Some(data),
            ..Self::new(method, params)
        }
    }

    /// Queues the request with an id.
    fn queue(&self, id: u64, socket: &mut WebSocket) {
        let head = format!("{{\"id\":{id},");
        let parts = [head.as_bytes(), self.suffix.as_bytes()];
        match &self.binary_data {
            None => socket.queue_text(&parts),
            Some(raw) => {
                let len = (head.len() + self.suffix.len()) as u64;
                let [_, _, _, _, _, a, b, c] = len.to_be_bytes();
                socket.queue_binary(&[&[1, a, b, c], parts[0], parts[1], raw]);
            }
        }
    }

    /// Returns the approximate size on the wire in bytes.
    pub(crate) fn wire_size(&self) -> usize {
        const ENVELOPE: usize = r#"{"id":1000,"#.len() + 8;
        ENVELOPE + self.suffix.len() + self.binary_data.as_ref().map_or(0, Vec::len)
    }
}

/// Stdio of a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StdioMode {
    /// Output on pipes, no input.
    Pipes,
    /// Input and output on pipes.
    WritablePipes,
    /// A pseudoterminal.
    Pty,
}

/// A serialized `process/start` request without its ids.
#[derive(Clone, Debug)]
pub(crate) struct PreparedStart {
    /// The members of `params` after `processId`, including the closing brace.
    members: String,
}

impl PreparedStart {
    /// Prepares a request that runs `argv`.
    pub(crate) fn new(argv: &[&str], stdio: StdioMode) -> Self {
        let members = json!({
            "argv": argv,
            "cwd": "file:///",
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
            "tty": stdio == StdioMode::Pty,
            "pipeStdin": stdio == StdioMode::WritablePipes,
        });
        Self {
            members: members.to_string().split_off(1),
        }
    }

    /// Adds a member to `params`.
    pub(crate) fn with_member(mut self, name: &str, value: &Value) -> Self {
        self.members.insert_str(0, &format!(r#""{name}":{value},"#));
        self
    }

    /// Returns the request with an id, which the process id contains as well.
    fn to_json(&self, id: u64) -> String {
        let members = &self.members;
        format!(
            r#"{{"id":{id},"method":"process/start","params":{{"processId":"b{id}",{members}}}"#
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_request_is_json_with_its_ids() {
        let start = PreparedStart::new(&["cat", "a\"b"], StdioMode::WritablePipes);
        let start = start.with_member("sandbox", &json!({"x": [1]}));
        let value: serde_json::Value = serde_json::from_str(&start.to_json(7)).unwrap();
        assert_eq!(value["id"], 7);
        assert_eq!(value["params"]["processId"], "b7");
        assert_eq!(value["params"]["argv"][1], "a\"b");
        assert_eq!(value["params"]["pipeStdin"], true);
        assert_eq!(value["params"]["tty"], false);
        assert_eq!(value["params"]["sandbox"]["x"][0], 1);
    }
}
