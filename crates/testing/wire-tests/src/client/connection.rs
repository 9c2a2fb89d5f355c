//! A client that speaks raw text. Every wait is bounded.

use std::{collections::VecDeque, fmt};

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

use super::{Events, decode_text, error_message, merge, script_params};
use crate::server::PATIENCE;

/// A byte stream of any kind.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// One connection.
pub(crate) struct Client {
    link: Link,
    last_id: i64,
    /// Messages that came while another was looked for.
    aside: VecDeque<Value>,
}

enum Link {
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

/// One message as it came.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Packet {
    Text(String),
    Binary(Vec<u8>),
}

impl Client {
    /// Opens a websocket on a stream. Frames of more than 8 MiB are not taken.
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
        let (socket, _) = timeout(PATIENCE, opening)
            .await
            .expect("upgrade in time")
            .unwrap();
        Self::new(Link::Socket(Box::new(socket)))
    }

    /// Speaks in lines.
    pub(crate) fn lines(input: ChildStdin, output: BufReader<ChildStdout>) -> Self {
        Self::new(Link::Lines {
            input: Some(input),
            output,
        })
    }

    fn new(link: Link) -> Self {
        Self {
            link,
            last_id: 100,
            aside: VecDeque::new(),
        }
    }

    /// Sends one message of text.
    pub(crate) async fn send(&mut self, text: &str) {
        match &mut self.link {
            Link::Socket(_) => self.send_frame(Message::text(text)).await,
            Link::Lines { .. } => self.send_bytes(format!("{text}\n").as_bytes()).await,
        }
    }

    /// Sends one websocket message or frame.
    pub(crate) async fn send_frame(&mut self, message: Message) {
        let Link::Socket(socket) = &mut self.link else {
            panic!("lines have no frames")
        };
        timeout(PATIENCE, socket.send(message))
            .await
            .expect("sent in time")
            .unwrap();
    }

    /// Sends one websocket message or frame to a peer that may be gone.
    pub(crate) async fn try_send_frame(&mut self, message: Message) {
        let Link::Socket(socket) = &mut self.link else {
            panic!("lines have no frames")
        };
        // The peer has the right to hang up at any byte of it.
        drop(
            timeout(PATIENCE, socket.send(message))
                .await
                .expect("sent in time"),
        );
    }

    /// Sends bytes on a pipe.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        let Link::Lines { input, .. } = &mut self.link else {
            panic!("sockets have frames")
        };
        let sent = input.as_mut().expect("input is open").write_all(bytes);
        timeout(PATIENCE, sent)
            .await
            .expect("sent in time")
            .unwrap();
    }

    /// Ends the input of a pipe.
    pub(crate) fn end_input(&mut self) {
        let Link::Lines { input, .. } = &mut self.link else {
            panic!("sockets have frames")
        };
        drop(input.take());
    }

    /// Receives the next message as it came; `None` when the connection has ended.
    pub(crate) async fn packet(&mut self) -> Option<Packet> {
        timeout(PATIENCE, self.next_packet())
            .await
            .expect("a message in time")
    }

    async fn next_packet(&mut self) -> Option<Packet> {
        match &mut self.link {
            Link::Socket(socket) => loop {
                let message = socket.next().await?.ok()?;
                if message.is_text() {
                    return Some(Packet::Text(message.into_text().unwrap().to_string()));
                } else if message.is_binary() {
                    return Some(Packet::Binary(message.into_data().to_vec()));
                } else if message.is_close() {
                    return None;
                }
            },
            Link::Lines { output, .. } => {
                let mut line = String::new();
                let count = output.read_line(&mut line).await.unwrap();
                (count > 0).then(|| {
                    let text = line.strip_suffix('\n').expect("a line ends in a newline");
                    Packet::Text(text.to_owned())
                })
            }
        }
    }

    /// Receives the next message of text as it came.
    pub(crate) async fn text(&mut self) -> String {
        match self.packet().await.expect("the connection is open") {
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

    /// Receives whatever comes until the connection ends.
    pub(crate) async fn expect_closed(&mut self) {
        let closed = async { while self.next_packet().await.is_some() {} };
        timeout(PATIENCE, closed)
            .await
            .expect("the connection ends in time");
    }

    /// Sends a request and returns its id.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> i64 {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"id": id, "method": method, "params": params}).to_string())
            .await;
        id
    }

    /// Sends the same request many times in one go, and returns their ids.
    pub(crate) async fn pipeline(&mut self, count: i64, method: &str, params: &Value) -> Vec<i64> {
        let ids: Vec<i64> = (self.last_id + 1..=self.last_id + count).collect();
        self.last_id += count;
        let texts = ids
            .iter()
            .map(|id| json!({"id": id, "method": method, "params": params}));
        match &mut self.link {
            Link::Socket(socket) => {
                for text in texts {
                    socket.feed(Message::text(text.to_string())).await.unwrap();
                }
                timeout(PATIENCE, socket.flush())
                    .await
                    .expect("sent in time")
                    .unwrap();
            }
            Link::Lines { .. } => {
                let lines: String = texts.map(|text| format!("{text}\n")).collect();
                self.send_bytes(lines.as_bytes()).await;
            }
        }
        ids
    }

    /// Waits for the answer to a request; what comes before it is put aside.
    pub(crate) async fn answer(&mut self, id: i64) -> Value {
        self.find(|message| message["id"] == id && message.get("method").is_none())
            .await
    }

    /// Waits for the next notification of a name, and returns its params.
    pub(crate) async fn note(&mut self, method: &str) -> Value {
        let mut note = self.find(|message| message["method"] == method).await;
        assert_eq!(note.get("id"), None, "a notification has no id");
        note["params"].take()
    }

    async fn find(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(index) = self.aside.iter().position(&wanted) {
            return self.aside.remove(index).unwrap();
        }
        loop {
            let message = parse(&self.text().await);
            if wanted(&message) {
                return message;
            }
            self.aside.push_back(message);
        }
    }

    /// Asks, and returns the result.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params.clone()).await;
        let mut answer = self.answer(id).await;
        assert!(answer.get("error").is_none(), "{method} {params}: {answer}");
        answer["result"].take()
    }

    /// Asks, and returns the message of the error, which must have this code.
    pub(crate) async fn expect_error(&mut self, code: i64, method: &str, params: Value) -> String {
        let id = self.request(method, params.clone()).await;
        let answer = self.answer(id).await;
        error_message(code, &answer, &format!("{method} {params}"))
    }

    /// Sends a text that is refused with id -1 and code -32600; returns the error's message.
    pub(crate) async fn expect_refused(&mut self, text: &str) -> String {
        self.send(text).await;
        let answer = self.answer(-1).await;
        error_message(-32600, &answer, text.get(..200).unwrap_or(text))
    }

    /// Initializes, confirms, and returns the session's id.
    pub(crate) async fn handshake(&mut self) -> String {
        let session = self.initialize(json!({})).await["sessionId"]
            .as_str()
            .unwrap()
            .to_owned();
        self.send(r#"{"method":"initialized","params":{}}"#).await;
        session
    }

    /// Initializes with some params beside the client's name.
    pub(crate) async fn initialize(&mut self, mut params: Value) -> Value {
        params["clientName"] = "wire-tests".into();
        self.call("initialize", params).await
    }

    /// Asks for something cheap: the connection is in order.
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

    /// Starts what `params` say, with some members changed.
    pub(crate) async fn start_with(&mut self, mut params: Value, change: Value) {
        merge(&mut params, change);
        let result = self.call("process/start", params.clone()).await;
        assert_eq!(
            result,
            json!({"processId": params["processId"], "sandboxType": "none"})
        );
    }

    /// Collects the events of a process up to its close; their numbers must have no holes.
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

    /// Waits until what a process has written, except to standard error, ends in some text.
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

    /// Starts a script that prints process ids, one per line; returns this many of them.
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
    let message: Value = serde_json::from_str(text).expect("a message is JSON");
    assert!(
        message.is_object() && message.get("jsonrpc").is_none(),
        "{message}"
    );
    message
}
