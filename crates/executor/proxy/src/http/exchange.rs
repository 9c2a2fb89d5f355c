//! Forwards one plain HTTP request and its response, without any trailing byte.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::Duration,
};

use super::{
    chunked_body::{ChunkError, ChunkedBody},
    message_head::{BodyFraming, HeadBuffer},
    request::{HttpVersion, ProxyRequest, RequestKind},
    response::{BodyKind, ProxyResponse},
};
use crate::{limits, tunnel::IdleTimer};

/// Outcome of an exchange.
#[derive(Debug)]
pub(super) enum ExchangeOutcome {
    /// The response was forwarded.
    Complete,
    /// The protocol was upgraded. Holds the bytes that the server already sent in it.
    Upgraded(Vec<u8>),
    /// The server sent no valid response, and the client has received nothing yet.
    NoResponse,
    /// The exchange failed in the middle. Neither message may look complete.
    Aborted,
}

/// Forwards `request` with its body, which starts with `buffered`, and the response concurrently: a
/// server may answer before it has read the whole body.
pub(super) async fn exchange(
    request: &ProxyRequest,
    buffered: &[u8],
    client: &mut TcpStream,
    server: &mut TcpStream,
    idle_timeout: Duration,
) -> ExchangeOutcome {
    let idle_timer = IdleTimer::start();
    let (mut client_reader, mut client_writer) = client.split();
    let (mut server_reader, mut server_writer) = server.split();
    let send = async {
        let head = request.write_head();
        server_writer
            .write_all(&head)
            .await
            .map_err(BodyRelayError::Write)?;
        match &request.kind {
            RequestKind::Plain {
                framing,
                websocket: false,
                ..
            } => {
                relay_body(
                    *framing,
                    buffered,
                    &mut client_reader,
                    &mut server_writer,
                    &idle_timer,
                )
                .await
            }
            // Buffered bytes belong to the upgraded protocol.
            RequestKind::Plain { .. } | RequestKind::Connect => Ok(()),
        }
    };
    let request_failed = async {
        match send.await {
            // A server that stops reading may still answer.
            Ok(()) | Err(BodyRelayError::Write(_)) => std::future::pending().await,
            Err(
                BodyRelayError::Read(_) | BodyRelayError::Truncated | BodyRelayError::Malformed(_),
            ) => {}
        }
    };
    let receive = receive(request, &mut server_reader, &mut client_writer, &idle_timer);
    tokio::select! {
        outcome = receive => outcome,
        () = request_failed => ExchangeOutcome::Aborted,
        () = idle_timer.expired(idle_timeout) => ExchangeOutcome::Aborted,
    }
}

async fn receive(
    request: &ProxyRequest,
    server: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
    idle_timer: &IdleTimer,
) -> ExchangeOutcome {
    let mut buffer = HeadBuffer::default();
    for attempt in 0..MAX_INTERIM_RESPONSES {
        let no_response = || {
            if attempt == 0 {
                ExchangeOutcome::NoResponse
            } else {
                ExchangeOutcome::Aborted
            }
        };
        let Ok((head, rest)) = buffer.read(server).await else {
            return no_response();
        };
        idle_timer.reset();
        let Ok(response) = ProxyResponse::parse(&head) else {
            return no_response();
        };
        let Ok(body_kind) = response.body_kind(request) else {
            return no_response();
        };
        let is_forwarded = match body_kind {
            BodyKind::Switch if !request.is_websocket() => return no_response(),
            BodyKind::Interim => request.version == HttpVersion::Http11,
            BodyKind::Switch | BodyKind::Empty | BodyKind::Body(_) => true,
        };
        if is_forwarded
            && client
                .write_all(&response.write_head(body_kind))
                .await
                .is_err()
        {
            return ExchangeOutcome::Aborted;
        }
        match body_kind {
            BodyKind::Interim => buffer = HeadBuffer::with_bytes(rest),
            BodyKind::Switch => return ExchangeOutcome::Upgraded(rest),
            BodyKind::Empty => return ExchangeOutcome::Complete,
            BodyKind::Body(framing) => {
                return match relay_body(framing, &rest, server, client, idle_timer).await {
                    Ok(()) => ExchangeOutcome::Complete,
                    Err(_) => ExchangeOutcome::Aborted,
                };
            }
        }
    }
    ExchangeOutcome::Aborted
}

/// Maximum number of responses including interim ones.
const MAX_INTERIM_RESPONSES: usize = 16;

/// Forwards one body. `buffered` holds its first bytes, and possibly more.
pub(super) async fn relay_body(
    framing: BodyFraming,
    buffered: &[u8],
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    idle_timer: &IdleTimer,
) -> Result<(), BodyRelayError> {
    let mut body = BodyTracker::new(framing);
    let count = body.advance(buffered)?;
    writer
        .write_all(&buffered[..count])
        .await
        .map_err(BodyRelayError::Write)?;
    if body.is_done() {
        return Ok(());
    }
    let mut buffer = vec![0; limits::BUFFER_BYTES];
    while !body.is_done() {
        let read = reader
            .read(&mut buffer)
            .await
            .map_err(BodyRelayError::Read)?;
        if read == 0 {
            return body.handle_close();
        }
        idle_timer.reset();
        let count = body.advance(&buffer[..read])?;
        writer
            .write_all(&buffer[..count])
            .await
            .map_err(BodyRelayError::Write)?;
        idle_timer.reset();
    }
    Ok(())
}

/// Why a body was not forwarded completely.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyRelayError {
    /// Peer: reading failed.
    #[error("cannot read the body")]
    Read(#[source] io::Error),
    /// Peer: it closed the connection too early.
    #[error("the body is incomplete")]
    Truncated,
    /// Peer: invalid chunks.
    #[error("the body is malformed")]
    Malformed(#[from] ChunkError),
    /// Other peer: writing failed.
    #[error("cannot write the body")]
    Write(#[source] io::Error),
}

#[derive(Debug)]
enum BodyTracker {
    Length(u64),
    Chunked(ChunkedBody),
    UntilClose,
}

impl BodyTracker {
    fn new(framing: BodyFraming) -> Self {
        match framing {
            BodyFraming::Length(length) => Self::Length(length),
            BodyFraming::Chunked => Self::Chunked(ChunkedBody::new()),
            BodyFraming::UntilClose => Self::UntilClose,
        }
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        match self {
            Self::Length(remaining) => {
                let count = u64::try_from(bytes.len())
                    .unwrap_or(u64::MAX)
                    .min(*remaining);
                *remaining -= count;
                Ok(usize::try_from(count).unwrap_or(bytes.len()))
            }
            Self::Chunked(chunks) => chunks.advance(bytes),
            Self::UntilClose => Ok(bytes.len()),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Length(remaining) => *remaining == 0,
            Self::Chunked(chunks) => chunks.is_done(),
            Self::UntilClose => false,
        }
    }

    fn handle_close(&self) -> Result<(), BodyRelayError> {
        match self {
            Self::UntilClose => Ok(()),
            Self::Length(_) | Self::Chunked(_) => Err(BodyRelayError::Truncated),
        }
    }
}
