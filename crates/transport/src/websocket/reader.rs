//! Frames in, messages out.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{
    Control,
    frame::{Header, Opcode, apply_mask},
};
use crate::link::{MessageReader, ReadError, Role};

/// Bytes asked for when nothing is known of what comes.
const READ_BYTES: usize = 4 << 10;
/// Most bytes asked for at once: memory is taken as data comes, not as a header promises.
const MAX_READ_BYTES: usize = 1 << 20;

pub(super) struct Reader {
    input: Box<dyn AsyncRead + Send + Unpin>,
    buffer: BytesMut,
    /// The frame whose payload is being read.
    header: Option<Header>,
    /// The message whose last fragment has not come yet.
    message: Option<BytesMut>,
    role: Role,
    control: Arc<Control>,
    ended: bool,
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
        control: Arc<Control>,
    ) -> Self {
        Self {
            input,
            buffer,
            header: None,
            message: None,
            role,
            control,
            ended: false,
        }
    }

    /// Takes the next message that is complete in the buffer.
    fn take_message(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            let Some(header) = self.take_header()? else {
                return Ok(None);
            };
            let length = payload_length(&header, self.role)?;
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
            payload_length(&header, self.role)?;
            self.buffer.advance(size);
            self.header = Some(header);
        }
        Ok(self.header)
    }

    fn assemble(&mut self, header: &Header, payload: BytesMut) -> Result<Option<Bytes>, ReadError> {
        let whole = match (self.message.take(), header.opcode == Opcode::Continuation) {
            (None, false) => payload,
            (Some(mut message), true) => {
                let most = self.role.max_message_bytes();
                if message.len() + payload.len() > most {
                    return Err(ReadError::TooLong(most));
                }
                message.unsplit(payload);
                message
            }
            (None, true) => return Err(ReadError::Protocol("websocket fragment without a start")),
            (Some(_), false) => {
                return Err(ReadError::Protocol("websocket message inside another one"));
            }
        };
        if header.fin {
            return Ok(Some(whole.freeze()));
        }
        self.message = Some(whole);
        Ok(None)
    }

    fn handle_control(&mut self, opcode: Opcode, payload: Bytes) {
        match opcode {
            Opcode::Ping => self.control.owe(|owed| owed.pong = Some(payload)),
            Opcode::Close => {
                self.control.owe(|owed| owed.close = true);
                self.ended = true;
            }
            Opcode::Pong | Opcode::Continuation | Opcode::Text | Opcode::Binary => {}
        }
    }

    fn wanted(&self) -> usize {
        let missing = self
            .header
            .and_then(|header| payload_length(&header, self.role).ok());
        let missing = missing.map_or(0, |length| length.saturating_sub(self.buffer.len()));
        missing.clamp(READ_BYTES, MAX_READ_BYTES)
    }
}

impl MessageReader for Reader {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ReadError>> {
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
            let wanted = self.wanted();
            if self.buffer.is_empty() && self.buffer.capacity() < wanted {
                // What was handed out keeps its memory; an idle link keeps next to none.
                self.buffer = BytesMut::with_capacity(wanted);
            }
            self.buffer.reserve(wanted);
            // Reads into the spare part of the buffer, at most as much as is wanted.
            let mut space = (&mut self.buffer).limit(wanted);
            let read = pin!(self.input.read_buf(&mut space));
            if ready!(read.poll(cx))? == 0 {
                self.ended = true;
            }
        }
    }
}

fn payload_length(header: &Header, role: Role) -> Result<usize, ReadError> {
    let most = role.max_message_bytes();
    usize::try_from(header.length)
        .ok()
        .filter(|length| *length <= most)
        .ok_or(ReadError::TooLong(most))
}
