//! Decodes frames into messages (RFC 6455 section 5), without IO.
//!
//! Invariant: a violation of the RFC or of a limit fails as soon as the bytes that show it arrive:
//! headers before their payload, text at the first byte that is not UTF-8. Nothing is decoded after
//! an error.

use bytes::{Buf, Bytes, BytesMut};

use super::{FrameHeader, FrameOpcode, apply_mask};
use crate::link::LinkRole;

/// Decodes the frames of one direction of a connection.
#[derive(Debug)]
pub(super) struct MessageDecoder {
    /// Received bytes that are not decoded yet. The driver appends to it.
    pub(super) buffer: BytesMut,
    /// Header of the frame in progress.
    header: Option<FrameHeader>,
    /// Length of the payload at the start of `buffer` that is already unmasked and validated.
    checked: usize,
    /// The fragmented message in progress.
    message: Option<(MessageKind, BytesMut)>,
    utf8: Utf8Validator,
    role: LinkRole,
    pub(super) max_message_bytes: usize,
}

/// Frame type of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MessageKind {
    Text,
    Binary,
}

/// One decoded frame.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum FrameEvent {
    /// The frame completed a message.
    Message(MessageKind, Bytes),
    /// The message continues in the next frame.
    Fragment,
    Ping(Bytes),
    Pong,
    /// The peer closes, with an optional status code.
    Close(Option<u16>),
}

/// Peer: the frames violate the RFC or a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FrameError {
    Protocol(&'static str),
    InvalidUtf8,
    TooLong(usize),
}

impl From<InvalidUtf8> for FrameError {
    fn from(InvalidUtf8: InvalidUtf8) -> Self {
        Self::InvalidUtf8
    }
}

impl MessageDecoder {
    pub(super) fn new(buffer: BytesMut, role: LinkRole, max_message_bytes: usize) -> Self {
        Self {
            buffer,
            header: None,
            checked: 0,
            message: None,
            utf8: Utf8Validator::default(),
            role,
            max_message_bytes,
        }
    }

    /// Discards received data and releases its memory.
    pub(super) fn clear(&mut self) {
        *self = Self::new(BytesMut::new(), self.role, self.max_message_bytes);
    }

    /// Decodes the next frame; `None` until more bytes arrive.
    pub(super) fn next(&mut self) -> Result<Option<FrameEvent>, FrameError> {
        let Some(header) = self.take_header()? else {
            return Ok(None);
        };
        self.check_payload(&header)?;
        if self.missing_bytes() > 0 {
            return Ok(None);
        }
        self.header = None;
        let payload = self.buffer.split_to(std::mem::take(&mut self.checked));
        Ok(Some(match header.opcode {
            FrameOpcode::Ping => FrameEvent::Ping(payload.freeze()),
            FrameOpcode::Pong => FrameEvent::Pong,
            FrameOpcode::Close => FrameEvent::Close(close_code(&payload)?),
            FrameOpcode::Text => {
                self.assemble(MessageKind::Text, BytesMut::new(), payload, header.fin)?
            }
            FrameOpcode::Binary => {
                self.assemble(MessageKind::Binary, BytesMut::new(), payload, header.fin)?
            }
            FrameOpcode::Continuation => {
                let (kind, message) = self.message.take().ok_or(NO_START)?;
                self.assemble(kind, message, payload, header.fin)?
            }
        }))
    }

    /// Returns how many bytes of the current payload are missing.
    pub(super) fn missing_bytes(&self) -> usize {
        let length = self.header.map_or(0, |header| header.payload_len());
        length.saturating_sub(self.buffer.len())
    }

    /// Returns the maximum size of the incoming message before the next frame header: up to the end
    /// of its last fragment, or the limit if more fragments follow.
    pub(super) fn expected_bytes(&self) -> usize {
        let arrived = self
            .message
            .as_ref()
            .map_or(0, |(_, message)| message.len());
        match self.header {
            Some(header) if header.opcode.is_control() => arrived,
            Some(header) => {
                let announced = arrived + header.payload_len();
                match header.fin || announced <= Self::SMALL_BYTES {
                    true => announced,
                    false => self.max_message_bytes,
                }
            }
            None => arrived,
        }
    }

    /// Messages up to this size need no reservation: they fit into a read buffer.
    pub(super) const SMALL_BYTES: usize = 64 << 10;

    fn take_header(&mut self) -> Result<Option<FrameHeader>, FrameError> {
        if self.header.is_some() {
            return Ok(self.header);
        }
        let parsed = FrameHeader::parse(&self.buffer).map_err(FrameError::Protocol)?;
        let Some((header, size)) = parsed else {
            return Ok(None);
        };
        if header.mask.is_some() != (self.role == LinkRole::Server) {
            return Err(FrameError::Protocol(match self.role {
                LinkRole::Server => "websocket frame of a client is not masked",
                LinkRole::Client => "websocket frame of a server is masked",
            }));
        }
        let arrived = match (&self.message, header.opcode) {
            (_, FrameOpcode::Close | FrameOpcode::Ping | FrameOpcode::Pong) => 0,
            (None, FrameOpcode::Continuation) => return Err(NO_START),
            (None, FrameOpcode::Text | FrameOpcode::Binary) => 0,
            (Some((_, message)), FrameOpcode::Continuation) => message.len(),
            (Some(_), FrameOpcode::Text | FrameOpcode::Binary) => {
                return Err(FrameError::Protocol(
                    "websocket message starts inside another one",
                ));
            }
        };
        let available = (self.max_message_bytes - arrived) as u64;
        if !header.opcode.is_control() && header.length > available {
            return Err(FrameError::TooLong(self.max_message_bytes));
        }
        self.buffer.advance(size);
        self.header = Some(header);
        Ok(self.header)
    }

    /// Unmasks and validates the payload bytes received since the last call.
    fn check_payload(&mut self, header: &FrameHeader) -> Result<(), FrameError> {
        let end = header.payload_len().min(self.buffer.len());
        let arrived = &mut self.buffer[self.checked..end];
        if let Some(mut mask) = header.mask {
            mask.rotate_left(self.checked % 4);
            apply_mask(mask, arrived);
        }
        self.checked = end;
        let is_text = matches!(
            (header.opcode, &self.message),
            (FrameOpcode::Text, _) | (FrameOpcode::Continuation, Some((MessageKind::Text, _)))
        );
        if is_text {
            self.utf8.push(arrived)?;
        }
        Ok(())
    }

    fn assemble(
        &mut self,
        kind: MessageKind,
        mut message: BytesMut,
        payload: BytesMut,
        fin: bool,
    ) -> Result<FrameEvent, FrameError> {
        message.unsplit(payload);
        if !fin {
            self.message = Some((kind, message));
            return Ok(FrameEvent::Fragment);
        }
        if kind == MessageKind::Text {
            self.utf8.finish()?;
        }
        Ok(FrameEvent::Message(kind, message.freeze()))
    }
}

const NO_START: FrameError = FrameError::Protocol("websocket fragment without a first one");

/// Returns the status code of a close frame (RFC 6455 sections 5.5.1 and 7.4).
fn close_code(payload: &[u8]) -> Result<Option<u16>, FrameError> {
    let (code, reason) = match payload {
        [] => return Ok(None),
        [_] => return Err(FrameError::Protocol("websocket close frame of one byte")),
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
    };
    // The registered codes that may be sent, and the ranges for libraries and applications.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(FrameError::Protocol(
            "websocket close frame with a code that must not be sent",
        ));
    }
    str::from_utf8(reason).map_err(|_| FrameError::InvalidUtf8)?;
    Ok(Some(code))
}

/// Incremental UTF-8 validation (RFC 6455 section 8.1). Each call costs as much as
/// [`str::from_utf8`] on the new piece: no byte is checked twice, and ASCII takes the fast path.
#[derive(Debug, Default)]
pub(super) struct Utf8Validator {
    /// Start of an incomplete character.
    partial: [u8; 4],
    partial_len: usize,
}

/// The text cannot become valid UTF-8.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct InvalidUtf8;

impl Utf8Validator {
    /// Validates the next piece.
    pub(super) fn push(&mut self, mut piece: &[u8]) -> Result<(), InvalidUtf8> {
        while self.partial_len > 0 {
            let Some((first, rest)) = piece.split_first() else {
                return Ok(());
            };
            piece = rest;
            self.partial[self.partial_len] = *first;
            self.partial_len += 1;
            match str::from_utf8(&self.partial[..self.partial_len]) {
                Ok(_) => self.partial_len = 0,
                // An incomplete character: at most three bytes.
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return Err(InvalidUtf8),
            }
        }
        let Err(error) = str::from_utf8(piece) else {
            return Ok(());
        };
        if error.error_len().is_some() {
            return Err(InvalidUtf8);
        }
        let incomplete = &piece[error.valid_up_to()..];
        self.partial_len = incomplete.len();
        self.partial[..incomplete.len()].copy_from_slice(incomplete);
        Ok(())
    }

    /// Checks that the text does not end inside a character, and resets.
    pub(super) fn finish(&mut self) -> Result<(), InvalidUtf8> {
        match std::mem::take(&mut self.partial_len) {
            0 => Ok(()),
            _ => Err(InvalidUtf8),
        }
    }
}

#[cfg(any(test, fuzzing))]
/// Maximum message size in a fuzz run: small enough for inputs to exceed.
const MAX_MESSAGE_BYTES: usize = 1000;

#[cfg(any(test, fuzzing))]
/// Decodes frames. The first byte selects the role and the size of the pieces in which the rest
/// arrives.
///
/// # Panics
/// Panics if an invariant is violated: the result is independent of the pieces, text is UTF-8, and
/// messages respect the limit.
pub fn websocket_frame(data: &[u8]) {
    let Some((first, stream)) = data.split_first() else {
        return;
    };
    let role = match first & 1 {
        0 => LinkRole::Server,
        _ => LinkRole::Client,
    };
    let unsplit = decode(role, stream.chunks(stream.len().max(1)));
    let pieces = decode(role, stream.chunks(usize::from(first >> 1).max(1)));
    assert_eq!(
        unsplit, pieces,
        "the result depends on how the frames arrive"
    );
    for event in &unsplit.0 {
        if let FrameEvent::Message(kind, message) = event {
            assert!(
                message.len() <= MAX_MESSAGE_BYTES,
                "message exceeds the limit"
            );
            let is_text = str::from_utf8(message).is_ok();
            assert!(*kind == MessageKind::Binary || is_text, "text is UTF-8");
        }
    }
}

#[cfg(any(test, fuzzing))]
fn decode<'a>(
    role: LinkRole,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<FrameEvent>, Option<FrameError>) {
    let mut decoder = MessageDecoder::new(BytesMut::new(), role, MAX_MESSAGE_BYTES);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.buffer.extend_from_slice(piece);
        loop {
            match decoder.next() {
                Ok(Some(FrameEvent::Close(code))) => {
                    events.push(FrameEvent::Close(code));
                    return (events, None);
                }
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Some(error)),
            }
        }
        assert!(decoder.expected_bytes() <= MAX_MESSAGE_BYTES);
    }
    (events, None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn validate(pieces: &[&[u8]]) -> Result<(), InvalidUtf8> {
        let mut validator = Utf8Validator::default();
        for piece in pieces {
            validator.push(piece)?;
        }
        validator.finish()
    }

    proptest! {
        #[test]
        fn validation_in_pieces_matches_the_whole_text(
            text in prop_oneof![
                any::<Vec<u8>>(),
                any::<String>().prop_map(String::into_bytes),
                (any::<String>(), any::<u8>(), any::<String>())
                    .prop_map(|(a, b, c)| [a.as_bytes(), &[b], c.as_bytes()].concat()),
            ],
            size in 1usize..9,
        ) {
            let pieces: Vec<&[u8]> = text.chunks(size).collect();
            prop_assert_eq!(validate(&pieces).is_ok(), str::from_utf8(&text).is_ok());
        }

        #[test]
        fn invalid_text_is_rejected_at_the_first_wrong_byte(
            start in any::<String>(),
            wrong in any::<Vec<u8>>(),
        ) {
            let text = [start.as_bytes(), &wrong].concat();
            let mut validator = Utf8Validator::default();
            for end in 1..=text.len() {
                let is_valid_prefix = match str::from_utf8(&text[..end]) {
                    Ok(_) => true,
                    Err(error) => error.error_len().is_none(),
                };
                prop_assert_eq!(validator.push(&text[end - 1..end]).is_ok(), is_valid_prefix);
                if !is_valid_prefix {
                    break;
                }
            }
        }
    }
}
