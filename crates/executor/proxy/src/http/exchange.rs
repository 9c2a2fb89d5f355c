//! Forwards one plain HTTP request and its response, without any trailing byte.
//!
//! Invariant: only strictly well-formed chunks pass, so that every parser finds the same end of a
//! chunked body. Chunks are forwarded as received, not decoded.

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::Duration,
};

use super::{
    message::{BodyKind, HttpVersion, ProxyRequest, ProxyResponse, RequestKind},
    message_head::{BodyFraming, HeadBuffer},
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
        let written = server_writer.write_all(&head).await;
        written.map_err(|_| BodyRelayError::Destination)?;
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
            Ok(()) | Err(BodyRelayError::Destination) => std::future::pending().await,
            Err(BodyRelayError::Source) => {}
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
    let source = |_| BodyRelayError::Source;
    let destination = |_| BodyRelayError::Destination;
    let mut body = BodyTracker::new(framing);
    let count = body.advance(buffered)?;
    let written = writer.write_all(&buffered[..count]).await;
    written.map_err(destination)?;
    if body.is_done() {
        return Ok(());
    }
    let mut buffer = vec![0; limits::BUFFER_BYTES];
    while !body.is_done() {
        let read = reader.read(&mut buffer).await.map_err(source)?;
        if read == 0 {
            return match body {
                BodyTracker::UntilClose => Ok(()),
                BodyTracker::Length(_) | BodyTracker::Chunked(_) => Err(BodyRelayError::Source),
            };
        }
        idle_timer.reset();
        let count = body.advance(&buffer[..read])?;
        let written = writer.write_all(&buffer[..count]).await;
        written.map_err(destination)?;
        idle_timer.reset();
    }
    Ok(())
}

/// Why a body was not forwarded completely.
#[derive(Debug)]
pub(super) enum BodyRelayError {
    /// Its sender failed, closed the connection too early, or sent invalid chunks.
    Source,
    /// Its receiver failed.
    Destination,
}

impl From<ChunkError> for BodyRelayError {
    fn from(_: ChunkError) -> Self {
        Self::Source
    }
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
}

/// Position in a chunked body.
#[derive(Clone, Debug)]
pub(crate) struct ChunkedBody {
    state: ChunkState,
    /// Length of the current size line or trailer so far.
    line: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ChunkState {
    /// In the digits of a chunk size: value and number of digits so far.
    Size(u64, u32),
    /// In a chunk extension.
    Extension(u64),
    /// After the carriage return of a size line.
    SizeEnd(u64),
    /// In a chunk, with this number of bytes remaining.
    Data(u64),
    /// Before the carriage return after a chunk.
    DataReturn,
    /// Before the line feed after a chunk.
    DataFeed,
    /// At the start of a trailer line.
    TrailerStart,
    /// Within a trailer line.
    Trailer,
    /// After the carriage return of a trailer line.
    TrailerFeed,
    /// After the carriage return of the last line.
    LastFeed,
    /// After the body.
    Done,
}

impl ChunkedBody {
    /// Starts before the first chunk.
    pub(crate) fn new() -> Self {
        Self {
            state: ChunkState::Size(0, 0),
            line: 0,
        }
    }

    /// Consumes bytes. Returns how many of them belong to the body.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        let mut position = 0;
        while let Some(&byte) = bytes.get(position) {
            if let ChunkState::Data(remaining) = self.state {
                let count = u64::try_from(bytes.len() - position)
                    .unwrap_or(u64::MAX)
                    .min(remaining);
                position += usize::try_from(count).unwrap_or(usize::MAX);
                self.state = match remaining - count {
                    0 => ChunkState::DataReturn,
                    remaining => ChunkState::Data(remaining),
                };
            } else if self.is_done() {
                break;
            } else {
                self.state = self.step(self.state, byte)?;
                position += 1;
            }
        }
        Ok(position)
    }

    /// Returns whether the body is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.state == ChunkState::Done
    }

    fn step(&mut self, state: ChunkState, byte: u8) -> Result<ChunkState, ChunkError> {
        self.line += 1;
        if self.line > limits::MAX_HEAD_BYTES {
            return Err(ChunkError::TooLong);
        }
        let next = match (state, byte) {
            (ChunkState::Size(size, digits), _) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16).map_or(0, u64::from);
                // Fifteen digits exceed any real chunk and cannot overflow.
                if digits >= 15 {
                    return Err(ChunkError::TooLong);
                }
                ChunkState::Size(size << 4 | digit, digits + 1)
            }
            (ChunkState::Size(_, 0), _) => return Err(ChunkError::Malformed),
            (ChunkState::Size(size, _) | ChunkState::Extension(size), b'\r') => {
                ChunkState::SizeEnd(size)
            }
            (ChunkState::Size(size, _), b';') => ChunkState::Extension(size),
            (ChunkState::Extension(size), b'\t' | b' '..=b'~' | 0x80..) => {
                ChunkState::Extension(size)
            }
            (ChunkState::SizeEnd(0), b'\n') => self.start_line(ChunkState::TrailerStart),
            (ChunkState::SizeEnd(size), b'\n') => self.start_line(ChunkState::Data(size)),
            (ChunkState::DataReturn, b'\r') => ChunkState::DataFeed,
            (ChunkState::DataFeed, b'\n') => self.start_line(ChunkState::Size(0, 0)),
            (ChunkState::TrailerStart, b'\r') => ChunkState::LastFeed,
            // A line that starts with a space would continue the previous one.
            (ChunkState::TrailerStart, b'!'..=b'~') => ChunkState::Trailer,
            (ChunkState::Trailer, b'\r') => ChunkState::TrailerFeed,
            (ChunkState::Trailer, b'\t' | b' '..=b'~' | 0x80..) => ChunkState::Trailer,
            (ChunkState::TrailerFeed, b'\n') => ChunkState::TrailerStart,
            (ChunkState::LastFeed, b'\n') => ChunkState::Done,
            _ => return Err(ChunkError::Malformed),
        };
        Ok(next)
    }

    fn start_line(&mut self, state: ChunkState) -> ChunkState {
        self.line = 0;
        state
    }
}

/// Why a chunked body is invalid. Peer: all variants.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum ChunkError {
    #[error("a chunk is malformed")]
    Malformed,
    #[error("a line between chunks is too long")]
    TooLong,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn end(bytes: &[u8]) -> Result<Option<usize>, ChunkError> {
        let mut chunks = ChunkedBody::new();
        let used = chunks.advance(bytes)?;
        Ok(chunks.is_done().then_some(used))
    }

    #[test]
    fn end_of_a_chunked_body_is_found() {
        for (body, rest) in [
            ("0\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"),
            ("5\r\nhello\r\n0\r\n\r\n", "x"),
            (
                "A;a=b; c=\"d\"\r\n0123456789\r\n000\r\nTrailer: x\r\nB: y\r\n\r\n",
                "0\r\n\r\n",
            ),
            ("2\r\n\r\n\r\n0\r\n\r\n", ""),
        ] {
            let message = format!("{body}{rest}");
            assert_eq!(end(message.as_bytes()), Ok(Some(body.len())), "{message:?}");
        }
    }

    #[test]
    fn malformed_chunks_are_refused() {
        for body in [
            "\r\n",
            "x\r\n",
            "0x5\r\nhello",
            "+5\r\nhello",
            " 5\r\nhello",
            "5 \r\nhello",
            "5\nhello",
            "5\r\nhello0\r\n",
            "5\r\nhello\n0\r\n",
            "5;\nhello",
            "5;a\rb",
            "5\rx",
            "0\r\n\n",
            "0\r\n x: y\r\n\r\n",
            "0\r\nx: y\n\r\n",
            "0\r\n\rx",
            "-1\r\n",
            "FFFFFFFFFFFFFFFF\r\n",
            "5;\0\r\n",
        ] {
            assert!(end(body.as_bytes()).is_err(), "{body:?}");
        }
        let endless = format!("5;{}", "a".repeat(limits::MAX_HEAD_BYTES));
        assert_eq!(end(endless.as_bytes()), Err(ChunkError::TooLong));
        let endless = format!("0\r\n{}", "a: b\r\n".repeat(limits::MAX_HEAD_BYTES / 6 + 1));
        assert_eq!(end(endless.as_bytes()), Err(ChunkError::TooLong));
    }

    proptest! {
        #[test]
        fn end_does_not_depend_on_chunking(
            sizes in proptest::collection::vec(1usize..40, 0..5),
            cut in 1usize..10,
            noise in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut body = Vec::new();
            for size in sizes {
                body.extend(format!("{size:x}\r\n").bytes());
                body.extend(std::iter::repeat_n(b'\r', size));
                body.extend(b"\r\n");
            }
            body.extend(b"0\r\n\r\n");
            let length = body.len();
            body.extend(noise);
            let mut chunks = ChunkedBody::new();
            let mut used = 0;
            for piece in body.chunks(cut) {
                used += chunks.advance(piece).unwrap();
            }
            prop_assert!(chunks.is_done());
            prop_assert_eq!(used, length);
        }

        #[test]
        fn chunked_body_never_panics(bytes in "[0-9a-f;\r\n :\\x00-\\xff]{0,60}") {
            let _ = end(bytes.as_bytes());
        }
    }
}
