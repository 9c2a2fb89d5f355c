//! How streams end.

use std::io;

use exec_relay::{
    limits,
    stream::{PushError, StreamError},
};

use crate::link::ReadError;

/// Why a stream is over.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// This side closed it.
    #[error("stream was closed")]
    Closed,
    /// The other end, or the relay on its behalf, reset it.
    #[error("stream was reset")]
    Reset,
    /// The relay's connection was lost, and did not come back in time.
    #[error("relay connection was lost")]
    Lost,
    /// The executor that held the session is gone: another one answers under its name.
    #[error("executor key changed")]
    ExecutorChanged,
    /// The registry or the relay will not have us back.
    #[error("relay cannot be reached again: {0}")]
    Refused(String),
    /// The peer, or the relay, does not keep to the rules.
    #[error("{0}")]
    Protocol(&'static str),
    /// This side has a message that no stream carries.
    #[error(transparent)]
    Message(#[from] PushError),
    /// The stream itself failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl End {
    /// Tells a reader.
    pub(super) fn read_error(&self) -> Result<(), ReadError> {
        match self {
            Self::Closed => Ok(()),
            Self::Reset | Self::Lost | Self::Refused(_) => Err(ReadError::Io(self.io_error())),
            Self::ExecutorChanged => Err(ReadError::ExecutorChanged),
            Self::Protocol(what) => Err(ReadError::Protocol(what)),
            Self::Message(_) => Err(ReadError::TooLong(limits::MESSAGE_BYTES)),
            Self::Stream(error) => Err(ReadError::Stream(*error)),
        }
    }

    /// Tells a writer.
    pub(super) fn io_error(&self) -> io::Error {
        let kind = match self {
            Self::Closed => io::ErrorKind::BrokenPipe,
            Self::Reset
            | Self::Lost
            | Self::ExecutorChanged
            | Self::Refused(_)
            | Self::Protocol(_)
            | Self::Message(_)
            | Self::Stream(_) => io::ErrorKind::ConnectionReset,
        };
        io::Error::new(kind, self.clone())
    }
}
