//! Why a socket ends, and what its peer is told.

use std::{future::poll_fn, io};

use exec_transport::{link::ReadError, websocket::socket::Socket};
use tokio::time::timeout;

use crate::{circuit::Ending, exchange::DialError, limits};

/// Why a socket ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Farewell {
    /// The peer closed it.
    Peer,
    /// The connection broke, or the peer was silent, or took nothing, for too long.
    Lost,
    /// The peer does not speak websocket.
    Protocol,
    /// A message is too long.
    TooLong,
    /// A message is no frame.
    Garbage,
    /// A message is text.
    Text,
    /// There is no executor to talk to.
    NoExecutor,
    /// This executor has too many harnesses.
    Busy,
    /// The way to the other side ended.
    Circuit(Ending),
}

impl Farewell {
    /// Returns a short name, for metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Peer => "closed",
            Self::Lost => "lost",
            Self::Protocol => "protocol",
            Self::TooLong => "too_long",
            Self::Garbage => "garbage",
            Self::Text => "text",
            Self::NoExecutor => "no_executor",
            Self::Busy => "busy",
            Self::Circuit(ending) => ending.name(),
        }
    }

    /// Returns the close code (RFC 6455 section 7.4) and a reason for people.
    pub(super) const fn close(self) -> Option<(u16, &'static str)> {
        Some(match self {
            // Nobody is there to be told.
            Self::Lost => return None,
            Self::Peer => (1000, ""),
            Self::Protocol => (1002, "not a websocket frame"),
            Self::TooLong => (1009, "message is too long"),
            Self::Garbage => (1007, "not a relay frame"),
            Self::Text => (1003, "text is not relayed"),
            Self::NoExecutor => (1013, "executor is not connected"),
            Self::Busy => (1013, "too many harnesses"),
            Self::Circuit(ending) => (ending.close_code(), ending.text()),
        })
    }

    /// Returns why a socket cannot be read any further.
    pub(super) fn unreadable(error: &ReadError) -> Self {
        match error {
            ReadError::TooLong(_) => Self::TooLong,
            ReadError::Protocol(_) => Self::Protocol,
            ReadError::InvalidUtf8 => Self::Garbage,
            // Whatever else: nobody is there to be told.
            ReadError::Io(_) | ReadError::Exited(_) | _ => Self::Lost,
        }
    }

    /// Closes a socket, within bounds. Whatever it has not taken by then is lost with it.
    pub(super) async fn say(self, socket: &mut Socket) {
        let Some((code, reason)) = self.close() else {
            return;
        };
        let closed = async {
            poll_fn(|cx| socket.writer.poll_close_with(code, reason, cx)).await?;
            // What the peer has sent meanwhile is taken off the connection: otherwise the system
            // would cut it, and the peer might not get to read the code.
            while let Ok(Some(_)) = socket.reader.next().await {}
            io::Result::Ok(())
        };
        match timeout(limits::CLOSE, closed).await {
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(error)) => tracing::trace!(%error, "socket was gone before it was closed"),
        }
    }
}

impl From<Ending> for Farewell {
    fn from(ending: Ending) -> Self {
        Self::Circuit(ending)
    }
}

impl From<DialError> for Farewell {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Offline => Self::NoExecutor,
            DialError::Busy => Self::Busy,
            DialError::Unreachable => Self::Circuit(Ending::Unreachable),
        }
    }
}
