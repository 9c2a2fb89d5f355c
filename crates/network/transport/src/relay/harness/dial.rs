//! Opening a relay's websocket.

use super::{HarnessOptions, Ticket};
use crate::{
    connect::{Address, ConnectError, WebSocket},
    trace::TraceSource,
    websocket::socket::Socket,
};

/// Opens the websocket of a ticket.
pub(super) async fn dial(
    ticket: &Ticket,
    options: &HarnessOptions,
) -> Result<Socket, ConnectError> {
    let mut headers = options.headers.clone();
    for (name, value) in options.trace.iter().flat_map(TraceSource::headers) {
        // A connection is worth more than the trace that finds no room.
        drop(headers.add(name.as_str(), value.to_str().unwrap_or_default()));
    }
    let server = WebSocket {
        headers,
        trust: options.trust.clone(),
        connect_timeout: options.connect_timeout,
        ..WebSocket::new(ticket.url.parse::<Address>()?)
    };
    match &options.proxy {
        Some(proxy) => server.open_socket_through(proxy).await,
        None => server.open_socket().await,
    }
}
