//! Client that sends and receives raw messages, with request parameters and the events of a
//! process. Every wait is bounded.

use std::{collections::VecDeque, fmt};

use base64_simd::STANDARD;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    process::{ChildStdin, ChildStdout},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        Message, client::IntoClientRequest, http::HeaderValue, protocol::WebSocketConfig,
    },
};

use crate::server::{PATH, TIMEOUT};

/// Any byte stream.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Client connection.
pub(crate) struct Client {
    link: ClientLink,
    last_id: i64,
    /// Messages received while waiting for another one.
    aside: VecDeque<Value>,
}

enum ClientLink {
    Socket(Box<WebSocketStream<Box<dyn Duplex>>>),
    Lines {
        input: Option<ChildStdin>,
        output: BufReader<ChildStdout>,
    },
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("aside", &self.aside)
            .finish_non_exhaustive()
    }
}

/// Received message.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Packet {
    Text(String),
    Binary(Vec<u8>),
}

impl Client {
    /// Opens a websocket on a stream. Rejects frames above 8 MiB.
    pub(crate) async fn upgrade(stream: Box<dyn Duplex>, bearer: Option<&str>) -> Self {
        let mut request = "ws://localhost/".into_client_request().unwrap();
        if let Some(token) = bearer {
            let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
            request.headers_mut().insert("authorization", value);
        }
        let config = WebSocketConfig::default()
            .max_frame_size(Some(8 << 20))
            .max_message_size(Some(64 << 20))
            .max_write_buffer_size(usize::MAX);
        let opening = client_async_with_config(request, stream, Some(config));
        let (socket, _) = timeout(TIMEOUT, opening)
            .await
            .expect("websocket upgrade timed out")
            .unwrap();
        Self::new(ClientLink::Socket(Box::new(socket)))
    }

    /// Creates a client that exchanges lines.
    pub(crate) fn lines(input: ChildStdin, output: BufReader<ChildStdout>) -> Self {
        Self::new(ClientLink::Lines {
            input: Some(input),
            output,
        })
    }

    fn new(link: ClientLink) -> Self {
        Self {
            link,
            last_id: 100,
            aside: VecDeque::new(),
        }
    }

    /// Sends a text message.
    pub(crate) async fn send(&mut self, text: &str) {
        match &mut self.link {
            ClientLink::Socket(_) => self.send_frame(Message::text(text)).await,
            ClientLink::Lines { .. } => self.send_bytes(format!("{text}\n").as_bytes()).await,
        }
    }

    /// Sends a websocket message or frame.
    pub(crate) async fn send_frame(&mut self, message: Message) {
        let ClientLink::Socket(socket) = &mut self.link else {
            panic!("lines have no frames")
        };
        timeout(TIMEOUT, socket.send(message))
            .await
            .expect("send timed out")
            .unwrap();
    }

    /// Sends a websocket message or frame to a peer that may have closed.
    pub(crate) async fn try_send_frame(&mut self, message: Message) {
        let ClientLink::Socket(socket) = &mut self.link else {
            panic!("lines have no frames")
        };
        // The peer may close at any byte.
        drop(
            timeout(TIMEOUT, socket.send(message))
                .await
                .expect("send timed out"),
        );
    }

    /// Sends bytes on a pipe.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        let ClientLink::Lines { input, .. } = &mut self.link else {
            panic!("sockets have frames")
        };
        let sent = input.as_mut().expect("input is closed").write_all(bytes);
        timeout(TIMEOUT, sent)
            .await
            .expect("send timed out")
            .unwrap();
    }

    /// Closes the input pipe.
    pub(crate) fn end_input(&mut self) {
        let ClientLink::Lines { input, .. } = &mut self.link else {
            panic!("sockets have frames")
        };
        drop(input.take());
    }

    /// Receives the next message, or `None` when the connection has closed.
    pub(crate) async fn packet(&mut self) -> Option<Packet> {
        timeout(TIMEOUT, self.next_packet())
            .await
            .expect("no message in time")
    }

    async fn next_packet(&mut self) -> Option<Packet> {
        match &mut self.link {
            ClientLink::Socket(socket) => loop {
                let message = socket.next().await?.ok()?;
                if message.is_text() {
                    return Some(Packet::Text(message.into_text().unwrap().to_string()));
                } else if message.is_binary() {
                    return Some(Packet::Binary(message.into_data().to_vec()));
                } else if message.is_close() {
                    return None;
                }
            },
            ClientLink::Lines { output, .. } => {
                let mut line = String::new();
                let count = output.read_line(&mut line).await.unwrap();
                (count > 0).then(|| {
                    let text = line.strip_suffix('\n').expect("line has no newline");
                    Packet::Text(text.to_owned())
                })
            }
        }
    }

    /// Receives the next text message.
    pub(crate) async fn text(&mut self) -> String {
        match self.packet().await.expect("connection closed") {
            Packet::Text(text) => text,
            Packet::Binary(bytes) => panic!("binary message {bytes:?}"),
        }
    }

    /// Receives the next message.
    pub(crate) async fn recv(&mut self) -> Value {
        if let Some(message) = self.aside.pop_front() {
            return message;
        }
        parse(&self.text().await)
    }

    /// Receives messages until the connection closes.
    pub(crate) async fn expect_closed(&mut self) {
        let closed = async { while self.next_packet().await.is_some() {} };
        timeout(TIMEOUT, closed)
            .await
            .expect("connection did not close in time");
    }

    /// Sends a request and returns its id.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> i64 {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"id": id, "method": method, "params": params}).to_string())
            .await;
        id
    }

    /// Sends the same request many times in one write and returns the ids.
    pub(crate) async fn pipeline(&mut self, count: i64, method: &str, params: &Value) -> Vec<i64> {
        let ids: Vec<i64> = (self.last_id + 1..=self.last_id + count).collect();
        self.last_id += count;
        let texts = ids
            .iter()
            .map(|id| json!({"id": id, "method": method, "params": params}));
        match &mut self.link {
            ClientLink::Socket(socket) => {
                for text in texts {
                    socket.feed(Message::text(text.to_string())).await.unwrap();
                }
                timeout(TIMEOUT, socket.flush())
                    .await
                    .expect("send timed out")
                    .unwrap();
            }
            ClientLink::Lines { .. } => {
                let lines: String = texts.map(|text| format!("{text}\n")).collect();
                self.send_bytes(lines.as_bytes()).await;
            }
        }
        ids
    }

    /// Waits for the response to a request and queues other messages.
    pub(crate) async fn answer(&mut self, id: i64) -> Value {
        self.find(|message| message["id"] == id && message.get("method").is_none())
            .await
    }

    /// Waits for the next notification with this method and returns its params.
    pub(crate) async fn note(&mut self, method: &str) -> Value {
        let mut note = self.find(|message| message["method"] == method).await;
        assert_eq!(note.get("id"), None, "a notification has no id");
        note["params"].take()
    }

    /// Takes the params of the notifications with this method that were received while waiting for
    /// something else.
    pub(crate) fn queued_notes(&mut self, method: &str) -> Vec<Value> {
        let is_wanted = |message: &Value| message["method"] == method;
        let (notes, others) = self.aside.drain(..).partition(is_wanted);
        self.aside = others;
        let notes: VecDeque<Value> = notes;
        notes
            .into_iter()
            .map(|mut note| note["params"].take())
            .collect()
    }

    async fn find(&mut self, predicate: impl Fn(&Value) -> bool) -> Value {
        if let Some(index) = self.aside.iter().position(&predicate) {
            return self.aside.remove(index).unwrap();
        }
        loop {
            let message = parse(&self.text().await);
            if predicate(&message) {
                return message;
            }
            self.aside.push_back(message);
        }
    }

    /// Sends a request and returns the result.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params.clone()).await;
        let mut answer = self.answer(id).await;
        assert!(answer.get("error").is_none(), "{method} {params}: {answer}");
        answer["result"].take()
    }

    /// Sends a request that must fail with this code and returns the error message.
    pub(crate) async fn expect_error(&mut self, code: i64, method: &str, params: Value) -> String {
        let id = self.request(method, params.clone()).await;
        let answer = self.answer(id).await;
        error_message(code, &answer, &format!("{method} {params}"))
    }

    /// Sends a text that must be refused with id -1 and code -32600, and returns the error message.
    pub(crate) async fn expect_refused(&mut self, text: &str) -> String {
        self.send(text).await;
        let answer = self.answer(-1).await;
        error_message(-32600, &answer, text.get(..200).unwrap_or(text))
    }

    /// Completes the handshake and returns the session id.
    pub(crate) async fn handshake(&mut self) -> String {
        let session = self.initialize(json!({})).await["sessionId"]
            .as_str()
            .unwrap()
            .to_owned();
        self.send(r#"{"method":"initialized","params":{}}"#).await;
        session
    }

    /// Initializes with extra params.
    pub(crate) async fn initialize(&mut self, mut params: Value) -> Value {
        params["clientName"] = "wire-tests".into();
        self.call("initialize", params).await
    }

    /// Asserts with a cheap request that the connection works.
    pub(crate) async fn expect_alive(&mut self) {
        assert_eq!(
            self.call("environment/status", json!({})).await,
            json!({"status": "ready"})
        );
    }

    /// Starts a shell script.
    pub(crate) async fn start(&mut self, id: &str, script: &str) {
        self.start_with(script_params(id, script), json!({})).await;
    }

    /// Starts a process with `params` and some changed fields.
    pub(crate) async fn start_with(&mut self, mut params: Value, change: Value) {
        merge(&mut params, change);
        let result = self.call("process/start", params.clone()).await;
        assert_eq!(
            result,
            json!({"processId": params["processId"], "sandboxType": "none"})
        );
    }

    /// Collects the events of a process until its close; the sequence numbers must have no gaps.
    pub(crate) async fn finish(&mut self, id: &str) -> Events {
        let mut events = Events::default();
        while events.closed.is_null() {
            let mut message = self
                .find(|message| {
                    message["params"]["processId"] == id && message.get("method").is_some()
                })
                .await;
            let params = message["params"].take();
            match message["method"].as_str().unwrap() {
                "process/output" => events.output.push(params),
                "process/exited" => events.exited = params,
                "process/closed" => events.closed = params,
                other => panic!("unexpected notification {other}"),
            }
        }
        events.check();
        events
    }

    /// Waits until the output of a process, except stderr, ends with some text.
    pub(crate) async fn output_until(&mut self, id: &str, end: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(end) {
            let note = self
                .find(|message| {
                    let params = &message["params"];
                    message["method"] == "process/output"
                        && params["processId"] == id
                        && params["stream"] != "stderr"
                })
                .await;
            text.push_str(&decode_text(&note["params"]["chunk"]));
        }
        text
    }

    /// Starts a script that prints process ids, one per line, and returns the first `count` of
    /// them.
    pub(crate) async fn start_tree(&mut self, params: Value, count: usize) -> Vec<u32> {
        let id = params["processId"].as_str().unwrap().to_owned();
        self.start_with(params, json!({})).await;
        let mut text = String::new();
        while text.lines().count() < count {
            text.push_str(&self.output_until(&id, "\n").await);
        }
        text.lines()
            .map(|line| line.trim().parse().expect(line))
            .collect()
    }
}

fn parse(text: &str) -> Value {
    let message: Value = serde_json::from_str(text).expect("message is not JSON");
    assert!(
        message.is_object() && message.get("jsonrpc").is_none(),
        "{message}"
    );
    message
}

/// Events of a process from its start to its close.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) output: Vec<Value>,
    pub(crate) exited: Value,
    pub(crate) closed: Value,
}

impl Events {
    pub(super) fn check(&self) {
        let all = self.output.iter().chain([&self.exited, &self.closed]);
        let mut seqs: Vec<u64> = all
            .map(|event| event["seq"].as_u64().expect("seq"))
            .collect();
        seqs.sort_unstable();
        assert!(
            (1..).zip(&seqs).all(|(expected, seq)| expected == *seq),
            "{seqs:?}"
        );
        assert_eq!(
            self.closed["seq"].as_u64(),
            seqs.last().copied(),
            "closed is not the last event"
        );
    }

    /// Returns the output of a stream.
    pub(crate) fn stream(&self, stream: &str) -> String {
        let chunks = self.output.iter().filter(|chunk| chunk["stream"] == stream);
        chunks.map(|chunk| decode_text(&chunk["chunk"])).collect()
    }

    /// Returns the stdout output.
    pub(crate) fn stdout(&self) -> String {
        self.stream("stdout")
    }

    /// Returns the exit code.
    pub(crate) fn code(&self) -> i64 {
        self.exited["exitCode"].as_i64().expect("exitCode")
    }
}

/// Script whose process tree is hard to kill: a child in the process group, a child outside it, and
/// a double-forked daemon, all of which ignore every signal that can be ignored.
pub(crate) const TREE: &str = r#"trap '' HUP INT TERM
    sleep 1000 & echo $!
    (setsid sh -c 'echo $$; exec sleep 1000' &)
    (setsid sh -c '(setsid sh -c "echo \$\$; exec sleep 1000" &) &' &)
    echo $$; exec sleep 1000"#;

/// Number of processes of a [`TREE`] that print their ids.
pub(crate) const TREE_SIZE: usize = 4;

/// Builds params that run a shell script on pipes.
pub(crate) fn script_params(id: &str, script: &str) -> Value {
    argv_params(id, &["sh", "-c", script])
}

/// Builds params that run a program on pipes.
pub(crate) fn argv_params(id: &str, argv: &[&str]) -> Value {
    json!({
        "processId": id, "argv": argv, "cwd": "file:///", "env": {"PATH": PATH}, "tty": false,
    })
}

/// Sets fields of an object.
pub(crate) fn merge(params: &mut Value, change: Value) {
    let Value::Object(change) = change else {
        panic!("an object changes an object")
    };
    params.as_object_mut().unwrap().extend(change);
}

/// Returns params with some fields set.
pub(crate) fn with(mut params: Value, change: Value) -> Value {
    merge(&mut params, change);
    params
}

/// Checks an error response and returns its message.
pub(crate) fn error_message(code: i64, answer: &Value, of: &str) -> String {
    let error = &answer["error"];
    assert_eq!(error["code"], code, "{of}: {answer}");
    assert_eq!(error.get("data"), None, "errors carry no data");
    assert_eq!(answer.as_object().unwrap().len(), 2, "{answer}");
    error["message"].as_str().expect("message").to_owned()
}

/// Decodes a base64 field.
pub(crate) fn decode(chunk: &Value) -> Vec<u8> {
    STANDARD
        .decode_to_vec(chunk.as_str().expect("base64 text"))
        .expect("base64")
}

/// Decodes a base64 field that holds text.
pub(crate) fn decode_text(chunk: &Value) -> String {
    String::from_utf8(decode(chunk)).unwrap()
}

/// Encodes bytes for a base64 field.
pub(crate) fn encode(data: &[u8]) -> String {
    STANDARD.encode_to_string(data)
}
