//! Loopback HTTP server whose responses the cases write themselves.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::bounded_wait::within;

/// Loopback HTTP server.
#[derive(Debug)]
pub(crate) struct UpstreamServer(TcpListener);

impl UpstreamServer {
    pub(crate) async fn new() -> Self {
        let bound = TcpListener::bind("127.0.0.1:0").await;
        Self(bound.expect("failed to bind a loopback port"))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        let address = self
            .0
            .local_addr()
            .expect("failed to read the local address");
        format!("http://{address}{path}")
    }

    /// Waits for a request and reads it.
    pub(crate) async fn accept(&self) -> UpstreamRequest {
        let accepted = within("request arrives", self.0.accept()).await;
        let (mut socket, _) = accepted.expect("failed to accept or connect");
        within("request is read", async {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(socket.read_u8().await.expect("request head is truncated"));
            }
            let head = String::from_utf8(head).expect("request head is not UTF-8");
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length = length.map_or(0, |length| {
                length.parse().expect("content-length is not a number")
            });
            let mut body = vec![0; length];
            socket
                .read_exact(&mut body)
                .await
                .expect("request body is truncated");
            UpstreamRequest { head, body, socket }
        })
        .await
    }

    /// Answers the next request with a status, headers and a body, and returns the request.
    pub(crate) async fn answer(&self, status: &str, headers: &str, body: &[u8]) -> UpstreamRequest {
        let mut exchange = self.accept().await;
        exchange.begin(status, headers, body.len()).await;
        exchange.send(body).await;
        exchange
    }
}

/// Received request with the connection for its response.
#[derive(Debug)]
pub(crate) struct UpstreamRequest {
    /// Request line and headers.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    socket: TcpStream,
}

impl UpstreamRequest {
    /// Sends the head of a response with a body of `length` bytes.
    pub(crate) async fn begin(&mut self, status: &str, headers: &str, length: usize) {
        let head = format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
        );
        self.send(head.as_bytes()).await;
    }

    /// Sends part of a response.
    pub(crate) async fn send(&mut self, part: &[u8]) {
        let sent = within("response is sent", self.socket.write_all(part)).await;
        sent.expect("peer closed the connection");
    }

    /// Sends bytes until the peer closes the connection.
    pub(crate) async fn send_until_closed(mut self) {
        let block = vec![b'x'; 64 << 10];
        within("peer closes the connection", async {
            while self.socket.write_all(&block).await.is_ok() {}
        })
        .await;
    }

    /// Waits until the peer closes the connection.
    pub(crate) async fn closed(mut self) {
        let read = within("peer closes the connection", self.socket.read_u8()).await;
        read.expect_err("peer sent more bytes");
    }

    /// Returns all values of a request header, in order.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect()
    }
}
