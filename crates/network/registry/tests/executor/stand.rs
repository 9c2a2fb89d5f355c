//! A server whose every answer is the test's.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use exec_transport::{
    link::Role,
    websocket::{
        accept_key,
        socket::{Socket, SocketLimits},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{Instant, timeout},
};

/// Longer than anything that a test waits for, in virtual time.
const PATIENCE: Duration = Duration::from_secs(300);

/// A server on a port of this machine.
pub(crate) struct Stand {
    pub(crate) address: SocketAddr,
    requests: mpsc::UnboundedReceiver<Request>,
}

/// A request that waits for its answer.
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
    /// When it came.
    pub(crate) at: Instant,
    stream: TcpStream,
}

impl Stand {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (found, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // What is held back on its way takes real time, in which hours of ours pass.
                stream.set_nodelay(true).unwrap();
                let found = found.clone();
                tokio::spawn(async move {
                    if let Some(request) = Request::read(stream).await {
                        drop(found.send(request));
                    }
                });
            }
        });
        Self { address, requests }
    }

    /// Waits for a request, which must be this one.
    pub(crate) async fn expect(&mut self, method: &str, target: &str) -> Request {
        let request = self.next().await;
        assert_eq!((&*request.method, &*request.target), (method, target));
        request
    }

    pub(crate) async fn next(&mut self) -> Request {
        let next = timeout(PATIENCE, self.requests.recv()).await;
        next.expect("a request").unwrap()
    }

    /// Asserts that nobody asks for anything in a while.
    pub(crate) async fn expect_nothing(&mut self, within: Duration) {
        if let Ok(Some(request)) = timeout(within, self.requests.recv()).await {
            panic!("unexpected {} {}", request.method, request.target);
        }
    }

    pub(crate) fn http(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn ws(&self, path: &str) -> String {
        format!("ws://{}{path}", self.address)
    }
}

impl Request {
    async fn read(mut stream: TcpStream) -> Option<Self> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let at = Instant::now();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let mut first = lines.next()?.split(' ');
        let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
        let mut headers = http::HeaderMap::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ").unwrap();
            let name: http::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        let length = headers.get("content-length");
        let length = length.map_or(0, |value| value.to_str().unwrap().parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        Some(Self {
            method,
            target,
            headers,
            body: body.into(),
            at,
            stream,
        })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Answers, and ends the connection.
    pub(crate) async fn reply(mut self, status: u16, body: impl std::fmt::Display) {
        let body = body.to_string();
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n"
        );
        self.stream
            .write_all((head + &body).as_bytes())
            .await
            .unwrap();
    }

    /// Agrees to a websocket.
    pub(crate) async fn upgrade(mut self) -> TcpStream {
        assert_eq!(self.method, "GET");
        assert_eq!(self.header("upgrade"), Some("websocket"));
        assert_eq!(self.header("sec-websocket-version"), Some("13"));
        let accept = accept_key(self.headers["sec-websocket-key"].as_bytes());
        let head = format!(
            "HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-accept: {accept}\r\n\r\n"
        );
        self.stream.write_all(head.as_bytes()).await.unwrap();
        self.stream
    }

    /// Agrees to a websocket that carries frames of a relay.
    pub(crate) async fn socket(self) -> Socket {
        let (read, write) = self.upgrade().await.into_split();
        Socket::new(read, write, &[], Role::Server, SocketLimits::default())
    }
}
