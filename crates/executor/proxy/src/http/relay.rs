//! Carries one body, and not a byte more.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{
    chunked::{ChunkError, Chunks},
    field::Framing,
};
use crate::{limits, tunnel::Activity};

/// Carries a body whose first bytes, and perhaps more than that, are `early`.
pub(super) async fn relay(
    framing: Framing,
    early: &[u8],
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    activity: &Activity,
) -> Result<(), RelayError> {
    let mut body = Body::new(framing);
    let count = body.advance(early)?;
    writer
        .write_all(&early[..count])
        .await
        .map_err(RelayError::Sink)?;
    if body.is_done() {
        return Ok(());
    }
    let mut buffer = vec![0; limits::BUFFER];
    while !body.is_done() {
        let read = reader.read(&mut buffer).await.map_err(RelayError::Source)?;
        if read == 0 {
            return body.handle_close();
        }
        activity.mark();
        let count = body.advance(&buffer[..read])?;
        writer
            .write_all(&buffer[..count])
            .await
            .map_err(RelayError::Sink)?;
        activity.mark();
    }
    Ok(())
}

/// Why a body did not get through whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum RelayError {
    /// Peer: its connection failed.
    #[error("cannot read the body")]
    Source(#[source] io::Error),
    /// Peer: it closed the connection too early.
    #[error("the body is incomplete")]
    Cut,
    /// Peer: it sent something else than it said.
    #[error("the body is malformed")]
    Malformed(#[from] ChunkError),
    /// Peer, the other one: it takes no more.
    #[error("cannot write the body")]
    Sink(#[source] io::Error),
}

#[derive(Debug)]
enum Body {
    Length(u64),
    Chunked(Chunks),
    UntilClose,
}

impl Body {
    fn new(framing: Framing) -> Self {
        match framing {
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(Chunks::new()),
            Framing::UntilClose => Self::UntilClose,
        }
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        match self {
            Self::Length(left) => {
                let here = u64::try_from(bytes.len()).unwrap_or(u64::MAX).min(*left);
                *left -= here;
                Ok(usize::try_from(here).unwrap_or(bytes.len()))
            }
            Self::Chunked(chunks) => chunks.advance(bytes),
            Self::UntilClose => Ok(bytes.len()),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.is_done(),
            Self::UntilClose => false,
        }
    }

    fn handle_close(&self) -> Result<(), RelayError> {
        match self {
            Self::UntilClose => Ok(()),
            Self::Length(_) | Self::Chunked(_) => Err(RelayError::Cut),
        }
    }
}
