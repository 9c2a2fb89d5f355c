//! Links to servers that are there, to such that are not what they should be, and to programs.

mod odd_peers;
mod program;
mod tls;
mod websocket;

use std::{future::Future, time::Duration};

use super::*;

/// Waits, but not forever.
async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not in time"))
}

/// A server at a URL.
fn server(url: &str) -> WebSocket {
    WebSocket::new(url.parse().unwrap())
}

/// The error of a link that could not be opened, with its sources.
async fn refusal(server: &WebSocket) -> (ConnectError, String) {
    let error = within("an error", server.open())
        .await
        .expect_err("no link");
    let text = chain(&error);
    (error, text)
}

fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = sources.map(ToString::to_string).collect();
    texts.join(": ")
}
