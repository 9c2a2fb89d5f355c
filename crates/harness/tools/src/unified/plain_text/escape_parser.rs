//! Incremental parser for escape codes and characters of one stream.
//!
//! The parser of the screen would buffer an endless control string. This one keeps a number and at
//! most four bytes.

use super::LineBuffer;

/// Parser state of one stream.
#[derive(Debug, Default)]
pub(super) struct EscapeParser {
    state: EscapeState,
    /// An incomplete character.
    partial: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
enum EscapeState {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After ESC and an intermediate byte; one more byte ends it.
    Designating,
    /// In a control sequence, after `ESC [`.
    Sequence(ControlSequence),
    /// In a control string, after `ESC ]`, `ESC P`, …
    String,
    /// After an ESC in a control string: its terminator, or the next sequence.
    StringEscape,
}

/// The relevant parts of a control sequence.
#[derive(Clone, Copy, Debug, Default)]
struct ControlSequence {
    /// The first parameter.
    number: u16,
    /// The first parameter is complete.
    number_complete: bool,
    /// It has a private or intermediate byte, so it is not a movement.
    is_private: bool,
}

impl EscapeParser {
    pub(super) fn feed(&mut self, mut bytes: &[u8], line: &mut LineBuffer, settled: &mut Vec<u8>) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let EscapeState::Text = self.state {
                let is_control = |byte: &u8| *byte < 0x20 || *byte == 0x7f;
                let length = bytes.iter().position(is_control).unwrap_or(bytes.len());
                if length > 0 {
                    self.text(&bytes[..length], line, settled);
                    bytes = &bytes[length..];
                    continue;
                }
                self.flush_partial(line, settled);
            }
            self.state = self.step(byte, line, settled);
            bytes = rest;
        }
    }

    /// Replaces an incomplete character at the end of the output.
    pub(super) fn finish(&mut self, line: &mut LineBuffer, settled: &mut Vec<u8>) {
        self.flush_partial(line, settled);
    }

    fn step(&self, byte: u8, line: &mut LineBuffer, settled: &mut Vec<u8>) -> EscapeState {
        match (self.state, byte) {
            (EscapeState::String, 0x1b) => EscapeState::StringEscape,
            (EscapeState::String, 0x07) | (_, 0x18 | 0x1a) => EscapeState::Text,
            (EscapeState::String, _) => EscapeState::String,
            (EscapeState::StringEscape, b'\\') => EscapeState::Text,
            (_, 0x1b) => EscapeState::Escape,
            // Control characters take effect inside a sequence as well.
            (state, 0x00..=0x1f | 0x7f) => {
                control(byte, line, settled);
                state
            }
            (EscapeState::Escape | EscapeState::StringEscape, b'[') => {
                EscapeState::Sequence(ControlSequence::default())
            }
            (EscapeState::Escape | EscapeState::StringEscape, b']' | b'P' | b'X' | b'^' | b'_') => {
                EscapeState::String
            }
            (EscapeState::Escape | EscapeState::StringEscape, 0x20..=0x2f) => {
                EscapeState::Designating
            }
            (EscapeState::Designating, 0x20..=0x2f) => EscapeState::Designating,
            // Next line, and reverse line feed.
            (EscapeState::Escape | EscapeState::StringEscape, b'E' | b'M') => {
                line.end_if_not_empty(settled);
                EscapeState::Text
            }
            (EscapeState::Sequence(sequence), _) => sequence.step(byte, line, settled),
            (
                EscapeState::Escape
                | EscapeState::StringEscape
                | EscapeState::Designating
                | EscapeState::Text,
                _,
            ) => EscapeState::Text,
        }
    }

    /// Writes valid text, replaces invalid bytes, and keeps an incomplete character.
    fn text(&mut self, mut bytes: &[u8], line: &mut LineBuffer, settled: &mut Vec<u8>) {
        while !self.partial.is_empty() {
            let Some((&byte, rest)) = bytes.split_first() else {
                return;
            };
            self.partial.push(byte);
            match std::str::from_utf8(&self.partial) {
                Ok(character) => {
                    write_printable(character, line, settled);
                    self.partial.clear();
                }
                Err(error) if error.error_len().is_none() => {}
                Err(_) => {
                    // The last byte does not belong to it, and may start another.
                    self.partial.pop();
                    self.flush_partial(line, settled);
                    continue;
                }
            }
            bytes = rest;
        }
        loop {
            let error = match std::str::from_utf8(bytes) {
                Ok(text) => return write_printable(text, line, settled),
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            write_printable(&String::from_utf8_lossy(valid), line, settled);
            let Some(length) = error.error_len() else {
                self.partial.extend_from_slice(rest);
                return;
            };
            line.write(REPLACEMENT, settled);
            bytes = &rest[length..];
        }
    }

    fn flush_partial(&mut self, line: &mut LineBuffer, settled: &mut Vec<u8>) {
        if !self.partial.is_empty() {
            self.partial.clear();
            line.write(REPLACEMENT, settled);
        }
    }
}

impl ControlSequence {
    fn step(mut self, byte: u8, line: &mut LineBuffer, settled: &mut Vec<u8>) -> EscapeState {
        match byte {
            b'0'..=b'9' => {
                if !self.number_complete {
                    let digit = u16::from(byte - b'0');
                    self.number = self.number.saturating_mul(10).saturating_add(digit);
                }
            }
            b';' | b':' => self.number_complete = true,
            0x20..=0x3f => self.is_private = true,
            _ => {
                if !self.is_private {
                    self.act(byte, line, settled);
                }
                return EscapeState::Text;
            }
        }
        EscapeState::Sequence(self)
    }

    /// Applies the sequence to the line. Colours and modes have no effect.
    fn act(self, kind: u8, line: &mut LineBuffer, settled: &mut Vec<u8>) {
        let number = usize::from(self.number);
        let count = number.max(1);
        match (kind, number) {
            (b'K', 0) => line.erase_to_end(),
            (b'K', 1) => line.erase_to_start(),
            (b'K', 2) => line.erase(),
            (b'C' | b'a', _) => line.move_right(count),
            (b'D', _) => line.move_left(count),
            (b'G' | b'`', _) => line.move_to(count - 1),
            (b'P', _) => line.delete(count),
            // The cursor moves elsewhere on the screen, which starts another line.
            (b'A' | b'B' | b'E' | b'F' | b'H' | b'J' | b'd' | b'f', _) => {
                line.end_if_not_empty(settled)
            }
            _ => {}
        }
    }
}

fn control(byte: u8, line: &mut LineBuffer, settled: &mut Vec<u8>) {
    match byte {
        b'\n' => line.end(settled),
        b'\r' => line.move_to(0),
        b'\t' => line.write("\t", settled),
        0x08 => line.move_left(1),
        0x0b | 0x0c => line.end_if_not_empty(settled),
        _ => {}
    }
}

/// Writes printable text; C1 control characters are dropped.
fn write_printable(text: &str, line: &mut LineBuffer, settled: &mut Vec<u8>) {
    for part in text.split(|character: char| character.is_control()) {
        line.write(part, settled);
    }
}

const REPLACEMENT: &str = "\u{fffd}";
