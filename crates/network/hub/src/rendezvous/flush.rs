//! Handing what is buffered to a socket.

use std::task::{Context, Poll};

use exec_transport::websocket::socket::SocketWriter;

use super::Farewell;

/// How a flush went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Flush {
    /// Nothing is left.
    Done,
    /// The peer does not take it all now. The task is woken when it takes more.
    Blocked,
}

/// Hands over what is buffered, and what the socket itself has to say, such as a ping.
pub(super) fn flush(writer: &mut SocketWriter, cx: &mut Context<'_>) -> Result<Flush, Farewell> {
    loop {
        let blocked = match writer.poll_flush(cx) {
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(_)) => return Err(Farewell::Lost),
            Poll::Pending => true,
        };
        match writer.poll_upkeep(cx) {
            Poll::Ready(Err(_)) => return Err(Farewell::Lost),
            Poll::Ready(Ok(())) if !blocked => {}
            Poll::Ready(Ok(())) | Poll::Pending => {
                return Ok(if blocked { Flush::Blocked } else { Flush::Done });
            }
        }
    }
}
