//! One initialized connection to a server, and prepared requests.
//!
//! Preparing a request outside of timed code keeps the cost of sending it low.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::rpc_message::{Answer, Event};
use crate::websocket::WebSocket;

/// An initialized connection that numbers its requests.
#[derive(Debug)]
pub(crate) struct Client {
    socket: WebSocket,
    last_id: u64,
    granted: Vec<String>,
}

impl Client {
    /// Connects and initializes, asking for `extensions`; see [`Self::granted`].
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
            .context("the answer to initialize is not JSON")?;
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

    /// Queues the start of a process and returns the number that names it.
    pub(crate) fn queue_start(&mut self, start: &Start) -> u64 {
        self.last_id += 1;
        self.socket.queue(start.request(self.last_id).as_bytes());
        self.last_id
    }

    /// Queues a write of one byte (a line feed) to a process.
    pub(crate) fn queue_write(&mut self, process: u64) {
        self.last_id += 1;
        let id = self.last_id;
        let request = format!(
            "{{\"id\":{id},\"method\":\"process/write\",\"params\":{{\"processId\":\"b{process}\",\
             \"chunk\":\"Cg==\",\"writeId\":\"{id}\"}}}}"
        );
        self.socket.queue(request.as_bytes());
    }

    /// Queues the end of a process by force.
    pub(crate) fn queue_terminate(&mut self, process: u64) {
        self.last_id += 1;
        let id = self.last_id;
        let request = format!(
            r#"{{"id":{id},"method":"process/terminate","params":{{"processId":"b{process}"}}}}"#
        );
        self.socket.queue(request.as_bytes());
    }

    /// Queues any request.
    pub(crate) fn queue_request(&mut self, request: &Request) {
        self.last_id += 1;
        request.queue(self.last_id, &mut self.socket);
    }

    /// Sends what is queued.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.socket.flush()
    }

    /// Waits for the next message.
    pub(crate) fn next_event(&mut self) -> Result<Event> {
        Event::parse(self.socket.next_message()?)
    }

    /// Returns the next message if it is here already.
    pub(crate) fn buffered_event(&mut self) -> Result<Option<Event>> {
        self.socket
            .buffered_message()?
            .map(Event::parse)
            .transpose()
    }

    /// Waits for the next answer, passing over notifications.
    pub(crate) fn next_answer(&mut self) -> Result<Answer<'_>> {
        let is_answer = |message: &[u8]| Ok(Answer::parse(message)?.is_some());
        Answer::parse(self.socket.next_message_that(is_answer)?)?.context("no answer")
    }

    /// Returns the next message if it is here already, and an answer.
    pub(crate) fn buffered_answer(&mut self) -> Result<Option<Answer<'_>>> {
        match self.socket.buffered_message()? {
            Some(message) => Answer::parse(message),
            None => Ok(None),
        }
    }

    /// Sends a request and waits for its answer; no other may be under way.
    pub(crate) fn call(&mut self, request: &Request) -> Result<Answer<'_>> {
        self.queue_request(request);
        self.flush()?;
        self.next_answer()
    }

    /// Waits for the next message for at most `limit`.
    pub(crate) fn message_within(&mut self, limit: Duration) -> Result<Option<&[u8]>> {
        self.socket.message_within(limit)
    }

    /// Starts a process and waits until it is closed and the request answered.
    ///
    /// Returns the time from before the request was sent until `process/closed` was here.
    pub(crate) fn run_to_close(&mut self, start: &Start) -> Result<Duration> {
        let began = Instant::now();
        let _process: u64 = self.queue_start(start);
        self.flush()?;
        self.until(began, |event| matches!(event, Event::Closed))
    }

    /// Writes one byte to a process that echoes it and waits for echo and answer.
    ///
    /// Returns the time from before the request was sent until the output was here.
    pub(crate) fn echo(&mut self, process: u64) -> Result<Duration> {
        let began = Instant::now();
        self.queue_write(process);
        self.flush()?;
        self.until(began, |event| matches!(event, Event::Output(_)))
    }

    /// Waits until `responses` requests are answered and `closed` processes are closed.
    pub(crate) fn settle(&mut self, mut responses: u64, mut closed: u64) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while responses > 0 || closed > 0 {
            match self.next_event()? {
                Event::Response => responses = responses.saturating_sub(1),
                Event::Closed => closed = closed.saturating_sub(1),
                Event::Output(_) | Event::Other => {}
            }
            if Instant::now() > deadline {
                bail!("{responses} answers and {closed} closed missing");
            }
        }
        Ok(())
    }

    /// Returns whether the server granted an extension.
    pub(crate) fn granted(&self, extension: &str) -> bool {
        self.granted.iter().any(|granted| granted == extension)
    }

    /// Waits for the event sought and for one response; only the former is timed.
    fn until(&mut self, began: Instant, sought: impl Fn(Event) -> bool) -> Result<Duration> {
        let (mut found, mut answered) = (None, false);
        loop {
            let event = self.next_event()?;
            if sought(event) {
                found.get_or_insert_with(|| began.elapsed());
            } else if event == Event::Response {
                answered = true;
            }
            if let (Some(found), true) = (found, answered) {
                return Ok(found);
            }
            ensure!(
                began.elapsed() < LIMIT,
                "server sends messages but no response"
            );
        }
    }
}

/// Longest wait for one exchange while messages keep coming; silence is bounded by the socket.
const LIMIT: Duration = Duration::from_secs(30);

/// A request that lacks only its id.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The message after its id, with the closing brace.
    rest: String,
    /// The data member, for a message that travels in binary.
    raw: Option<Vec<u8>>,
}

impl Request {
    /// Prepares a request.
    pub(crate) fn new(method: &str, params: &Value) -> Self {
        let message = json!({"method": method, "params": params});
        Self {
            rest: message.to_string().split_off(1),
            raw: None,
        }
    }

    /// Prepares a request whose data member travels as it is; `params` go without it.
    pub(crate) fn binary(method: &str, params: &Value, data: Vec<u8>) -> Self {
        Self {
            raw: Some(data),
            ..Self::new(method, params)
        }
    }

    /// Queues it with its id.
    fn queue(&self, id: u64, socket: &mut WebSocket) {
        let head = format!("{{\"id\":{id},");
        let parts = [head.as_bytes(), self.rest.as_bytes()];
        match &self.raw {
            None => socket.queue_text(&parts),
            Some(raw) => {
                let len = (head.len() + self.rest.len()) as u64;
                let [_, _, _, _, _, a, b, c] = len.to_be_bytes();
                socket.queue_binary(&[&[1, a, b, c], parts[0], parts[1], raw]);
            }
        }
    }

    /// Returns about how many bytes it takes on the wire.
    pub(crate) fn size(&self) -> usize {
        const ENVELOPE: usize = r#"{"id":1000,"#.len() + 8;
        ENVELOPE + self.rest.len() + self.raw.as_ref().map_or(0, Vec::len)
    }
}

/// What a process is connected to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stdio {
    /// Output on pipes, no input.
    Pipes,
    /// Input and output on pipes.
    WritablePipes,
    /// A pseudo terminal.
    Pty,
}

/// A `process/start` request that lacks only its ids.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// The members of `params` after `processId`, with the closing brace.
    members: String,
}

impl Start {
    /// Prepares a request that runs `argv`.
    pub(crate) fn new(argv: &[&str], stdio: Stdio) -> Self {
        let members = json!({
            "argv": argv,
            "cwd": "file:///",
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
            "tty": stdio == Stdio::Pty,
            "pipeStdin": stdio == Stdio::WritablePipes,
        });
        Self {
            members: members.to_string().split_off(1),
        }
    }

    /// Adds a member.
    pub(crate) fn with(mut self, name: &str, value: &Value) -> Self {
        self.members.insert_str(0, &format!(r#""{name}":{value},"#));
        self
    }

    /// Writes the request with its id; the process is named after it.
    fn request(&self, id: u64) -> String {
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
        let start = Start::new(&["cat", "a\"b"], Stdio::WritablePipes);
        let start = start.with("sandbox", &json!({"x": [1]}));
        let value: serde_json::Value = serde_json::from_str(&start.request(7)).unwrap();
        assert_eq!(value["id"], 7);
        assert_eq!(value["params"]["processId"], "b7");
        assert_eq!(value["params"]["argv"][1], "a\"b");
        assert_eq!(value["params"]["pipeStdin"], true);
        assert_eq!(value["params"]["tty"], false);
        assert_eq!(value["params"]["sandbox"]["x"][0], 1);
    }
}
