//! HTTP requests to a server, like those of a scraper.

use std::{collections::BTreeMap, path::Path};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};

use crate::test_user::within_timeout;

/// HTTP response.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Sends a request such as `GET /metrics`, with header lines.
pub(crate) async fn ask(authority: &str, line: &str, headers: &str) -> HttpAnswer {
    exchange(TcpStream::connect(authority).await.unwrap(), line, headers).await
}

/// The same over a unix socket.
pub(crate) async fn ask_unix(socket: &Path, line: &str) -> HttpAnswer {
    exchange(UnixStream::connect(socket).await.unwrap(), line, "").await
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    line: &str,
    headers: &str,
) -> HttpAnswer {
    let request =
        format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    within_timeout(stream.read_to_string(&mut text))
        .await
        .unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    HttpAnswer {
        status,
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

/// Samples of a metrics page.
#[derive(Clone, Debug)]
pub(crate) struct Samples(pub(crate) BTreeMap<String, f64>);

impl Samples {
    /// Requests the samples.
    pub(crate) async fn of(authority: &str) -> Self {
        let answer = ask(authority, "GET /metrics", "").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        Self::read(&answer.body)
    }

    /// Parses a page, each line of which must be a comment or a sample.
    pub(crate) fn read(page: &str) -> Self {
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        });
        Self(samples.collect())
    }

    /// Returns a sample. One that was not counted yet may be absent.
    pub(crate) fn value(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }
}
