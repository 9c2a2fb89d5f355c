//! An HTTP server on loopback whose answers the cases write themselves.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::bounded_wait::within;

/// Where requests go.
#[derive(Debug)]
pub(crate) struct Upstream(TcpListener);

impl Upstream {
    pub(crate) async fn new() -> Self {
        let bound = TcpListener::bind("127.0.0.1:0").await;
        Self(bound.expect("loopback has a free port"))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        let address = self.0.local_addr().expect("it is bound");
        format!("http://{address}{path}")
    }

    /// Waits for a request, and reads it.
    pub(crate) async fn accept(&self) -> Exchange {
        let accepted = within("a request comes", self.0.accept()).await;
        let (mut socket, _) = accepted.expect("it listens");
        within("the request can be read", async {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(socket.read_u8().await.expect("the head is whole"));
            }
            let head = String::from_utf8(head).expect("the head is text");
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length = length.map_or(0, |length| length.parse().expect("a number"));
            let mut body = vec![0; length];
            socket
                .read_exact(&mut body)
                .await
                .expect("the body is whole");
            Exchange { head, body, socket }
        })
        .await
    }

    /// Answers the next request with a status, headers and a body. Returns what was asked.
    pub(crate) async fn answer(&self, status: &str, headers: &str, body: &[u8]) -> Exchange {
        let mut exchange = self.accept().await;
        exchange.begin(status, headers, body.len()).await;
        exchange.send(body).await;
        exchange
    }
}

/// A request that came, and the way back.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// The request line and the headers.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    socket: TcpStream,
}

impl Exchange {
    /// Sends the head of an answer whose body has `length` bytes.
    pub(crate) async fn begin(&mut self, status: &str, headers: &str, length: usize) {
        let head = format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
        );
        self.send(head.as_bytes()).await;
    }

    /// Sends a part of an answer.
    pub(crate) async fn send(&mut self, part: &[u8]) {
        let sent = within("the answer is taken", self.socket.write_all(part)).await;
        sent.expect("the other end is there");
    }

    /// Sends bytes until the other end is gone.
    pub(crate) async fn send_until_closed(mut self) {
        let block = vec![b'x'; 64 << 10];
        within("the other end closes", async {
            while self.socket.write_all(&block).await.is_ok() {}
        })
        .await;
    }

    /// Waits until the other end is gone.
    pub(crate) async fn closed(mut self) {
        let read = within("the other end closes", self.socket.read_u8()).await;
        read.expect_err("nothing is asked any more");
    }

    /// Returns the values of a header of the request, in their order.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect()
    }
}
