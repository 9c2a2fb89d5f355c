//! Opening a relay's websocket.

use super::{HarnessOptions, Ticket};
use crate::{
    connect::{Address, ConnectError, WebSocket},
    websocket::socket::Socket,
};

/// Opens the websocket of a ticket.
pub(super) async fn dial(
    ticket: &Ticket,
    options: &HarnessOptions,
) -> Result<Socket, ConnectError> {
    let server = WebSocket {
        headers: options.headers.clone(),
        trust: options.trust.clone(),
        connect_timeout: options.connect_timeout,
        ..WebSocket::new(ticket.url.parse::<Address>()?)
    };
    match &options.proxy {
        Some(proxy) => server.open_socket_through(proxy).await,
        None => server.open_socket().await,
    }
}
