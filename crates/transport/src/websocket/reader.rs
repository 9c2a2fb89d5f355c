//! Frames in, messages out.

use std::{
    io,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{
    control::Control,
    frame::{Header, Opcode, apply_mask},
};
use crate::link::{MessageReader, ReadError, Role};

/// Bytes asked for when nothing is known of what comes.
const READ_BYTES: usize = 4 << 10;
/// Bytes asked for of a peer that has filled every read: fewer calls, and frames that lie in one
/// piece of memory.
const BUSY_READ_BYTES: usize = 256 << 10;
/// Most bytes asked for at once: memory is taken as data comes, not as a header promises.
const MAX_READ_BYTES: usize = 1 << 20;

pub(super) struct Reader {
    input: Box<dyn AsyncRead + Send + Unpin>,
    buffer: BytesMut,
    /// The frame whose payload is being read.
    header: Option<Header>,
    /// The message whose last fragment has not come yet.
    message: Option<(Kind, BytesMut)>,
    /// What the next read asks for, beside what is known to come.
    appetite: usize,
    /// All that was ever read.
    received: u64,
    role: Role,
    /// Longest message that is taken in.
    most: usize,
    control: Arc<Control>,
    ended: bool,
}

/// What a message was sent as.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Text,
    Binary,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("buffered", &self.buffer.len())
            .finish_non_exhaustive()
    }
}

impl Reader {
    pub(super) fn new(
        input: Box<dyn AsyncRead + Send + Unpin>,
        buffer: BytesMut,
        role: Role,
        most: usize,
        control: Arc<Control>,
    ) -> Self {
        Self {
            input,
            buffer,
            header: None,
            message: None,
            appetite: READ_BYTES,
            received: 0,
            role,
            most,
            control,
            ended: false,
        }
    }

    /// Takes messages of another length from here on.
    pub(super) fn with_limit(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// Returns how many bytes were read.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Takes the next message that is complete in the buffer.
    fn take_message(&mut self) -> Result<Option<(Kind, Bytes)>, ReadError> {
        loop {
            let Some(header) = self.take_header()? else {
                return Ok(None);
            };
            let length = payload_length(&header, self.most)?;
            if self.buffer.len() < length {
                return Ok(None);
            }
            self.header = None;
            let mut payload = self.buffer.split_to(length);
            if let Some(mask) = header.mask {
                apply_mask(mask, &mut payload);
            }
            if header.opcode.is_control() {
                self.handle_control(header.opcode, payload.freeze());
                if self.ended {
                    return Ok(None);
                }
            } else if let Some(message) = self.assemble(&header, payload)? {
                return Ok(Some(message));
            }
        }
    }

    fn take_header(&mut self) -> Result<Option<Header>, ReadError> {
        if self.header.is_none()
            && let Some((header, size)) =
                Header::parse(&self.buffer).map_err(ReadError::Protocol)?
        {
            if header.mask.is_some() != (self.role == Role::Server) {
                return Err(ReadError::Protocol(
                    "websocket frame is masked by the wrong side",
                ));
            }
            payload_length(&header, self.most)?;
            self.buffer.advance(size);
            self.header = Some(header);
        }
        Ok(self.header)
    }

    fn assemble(
        &mut self,
        header: &Header,
        payload: BytesMut,
    ) -> Result<Option<(Kind, Bytes)>, ReadError> {
        let kind = match header.opcode {
            Opcode::Continuation => None,
            Opcode::Text => Some(Kind::Text),
            Opcode::Binary | Opcode::Close | Opcode::Ping | Opcode::Pong => Some(Kind::Binary),
        };
        let (kind, whole) = match (self.message.take(), kind) {
            (None, Some(kind)) => (kind, payload),
            (Some((kind, mut message)), None) => {
                if message.len() + payload.len() > self.most {
                    return Err(ReadError::TooLong(self.most));
                }
                message.unsplit(payload);
                (kind, message)
            }
            (None, None) => return Err(ReadError::Protocol("websocket fragment without a start")),
            (Some(_), Some(_)) => {
                return Err(ReadError::Protocol("websocket message inside another one"));
            }
        };
        if header.fin {
            return Ok(Some((kind, whole.freeze())));
        }
        self.message = Some((kind, whole));
        Ok(None)
    }

    fn handle_control(&mut self, opcode: Opcode, payload: Bytes) {
        match opcode {
            Opcode::Ping => self.control.owe(|owed| owed.pong = Some(payload)),
            Opcode::Close => {
                self.control.owe(|owed| owed.close = true);
                self.ended = true;
            }
            Opcode::Pong => self.control.owe(|owed| owed.ponged = true),
            Opcode::Continuation | Opcode::Text | Opcode::Binary => {}
        }
    }

    fn wanted(&self) -> usize {
        let missing = self
            .header
            .and_then(|header| payload_length(&header, self.most).ok());
        let missing = missing.map_or(0, |length| length.saturating_sub(self.buffer.len()));
        missing.clamp(self.appetite, MAX_READ_BYTES)
    }

    /// Returns the next message and what it was sent as; `None` when the peer is done.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<(Kind, Bytes)>, ReadError>> {
        loop {
            if self.ended {
                return Poll::Ready(Ok(None));
            }
            if let Some(message) = self.take_message()? {
                return Poll::Ready(Ok(Some(message)));
            }
            if self.ended {
                continue;
            }
            let read = match self.poll_read(cx) {
                Poll::Ready(read) => read?,
                Poll::Pending => {
                    if self.buffer.is_empty() {
                        // Nobody knows when the next byte comes: an idle connection keeps nothing.
                        self.buffer = BytesMut::new();
                    }
                    return Poll::Pending;
                }
            };
            if read == 0 {
                self.ended = true;
            }
        }
    }

    /// Reads what has come into the buffer.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let wanted = self.wanted();
        if self.buffer.is_empty() && self.buffer.capacity() < wanted {
            // What was handed out keeps its memory, and is not copied to make room.
            self.buffer = BytesMut::with_capacity(wanted);
        }
        self.buffer.reserve(wanted);
        // Reads into the spare part of the buffer, at most as much as is wanted.
        let mut space = (&mut self.buffer).limit(wanted);
        let read = pin!(self.input.read_buf(&mut space));
        let read = ready!(read.poll(cx))?;
        self.received += read as u64;
        self.appetite = if read == wanted {
            (self.appetite * 4).min(BUSY_READ_BYTES)
        } else {
            READ_BYTES.max(self.appetite / 2)
        };
        Poll::Ready(Ok(read))
    }
}

impl MessageReader for Reader {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ReadError>> {
        let next = ready!(self.poll_next(cx))?;
        Poll::Ready(Ok(next.map(|(_, message)| message)))
    }
}

fn payload_length(header: &Header, most: usize) -> Result<usize, ReadError> {
    usize::try_from(header.length)
        .ok()
        .filter(|length| *length <= most)
        .ok_or(ReadError::TooLong(most))
}
