//! Loopback HTTP server whose responses the tests write themselves.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::server::TIMEOUT;

/// Loopback HTTP server.
pub(crate) struct UpstreamServer(TcpListener);

impl UpstreamServer {
    pub(crate) async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.0.local_addr().unwrap())
    }

    /// Waits for a request and reads its head.
    pub(crate) async fn accept(&self) -> UpstreamRequest {
        let exchange = async {
            let (mut socket, _) = self.0.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(socket.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            UpstreamRequest { head, socket }
        };
        timeout(TIMEOUT, exchange)
            .await
            .expect("no request in time")
    }
}

/// Received request with the connection for its response.
pub(crate) struct UpstreamRequest {
    pub(crate) head: String,
    socket: TcpStream,
}

impl UpstreamRequest {
    /// Sends a head with a content length, and part of the body.
    pub(crate) async fn answer(&mut self, length: usize, body: &[u8]) {
        let head = format!(
            "HTTP/1.1 200 OK\r\nX-Test: yes\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        );
        self.send(head.as_bytes()).await;
        self.send(body).await;
    }

    pub(crate) async fn send(&mut self, part: &[u8]) {
        let sent = timeout(TIMEOUT, self.socket.write_all(part)).await;
        sent.expect("response was not read in time").unwrap();
    }

    /// Reads the rest of the request.
    pub(crate) async fn read(&mut self, length: usize) -> Vec<u8> {
        let mut body = vec![0; length];
        let read = timeout(TIMEOUT, self.socket.read_exact(&mut body)).await;
        read.expect("request did not arrive in time").unwrap();
        body
    }

    /// Sends until the peer stops reading, and returns the number of bytes sent.
    pub(crate) async fn fill(&mut self) -> usize {
        let (block, mut sent) = ([b'x'; 64 << 10], 0);
        let pause = std::time::Duration::from_millis(500);
        while let Ok(count) = timeout(pause, self.socket.write(&block)).await {
            sent += count.unwrap();
        }
        sent
    }

    /// Waits until the server closes the connection.
    pub(crate) async fn closed(mut self) {
        let read = timeout(TIMEOUT, self.socket.read_u8()).await;
        read.expect("connection did not close in time").unwrap_err();
    }
}
