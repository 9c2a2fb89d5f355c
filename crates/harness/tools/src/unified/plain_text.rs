//! Converts output to plain text: no escape codes, no overwritten progress lines, no invalid UTF-8.
//!
//! Each stream has its own [`EscapeParser`]; all write to one [`LineBuffer`], as on a screen.
//! Invariant: the text depends on the bytes and their order, not on chunk boundaries. The parser of
//! the screen would buffer an endless control string; this one keeps a number and at most four
//! bytes. Elsewhere: full-screen programs ([`screen`](super::screen)).

#[cfg(test)]
mod tests;

use exec_wire::process::OutputStream;

/// Converts output to text.
#[derive(Debug, Default)]
pub(super) struct PlainText {
    streams: [EscapeParser; 3],
    line: LineBuffer,
}

impl PlainText {
    /// Adds output and appends settled text to `text`. The last line is settled when it ends,
    /// because it can still be overwritten.
    pub(super) fn feed(&mut self, stream: OutputStream, bytes: &[u8], text: &mut Vec<u8>) {
        self.streams[stream as usize].feed(bytes, &mut self.line, text);
    }

    /// Settles the current line. Later output cannot overwrite it.
    pub(super) fn settle(&mut self, text: &mut Vec<u8>) {
        self.line.settle(text);
    }

    /// Settles everything at the end of the output.
    pub(super) fn finish(&mut self, text: &mut Vec<u8>) {
        for stream in &mut self.streams {
            stream.finish(&mut self.line, text);
        }
        self.settle(text);
    }

    /// Returns the current line.
    pub(super) fn line(&self) -> &[u8] {
        self.line.text()
    }
}

/// Maximum length of a line that can be overwritten, in bytes. The excess is settled, so that an
/// endless line does not stay in memory.
const MAX_LINE_BYTES: usize = 4 << 10;
/// Maximum number of blank columns left by a cursor movement: more than any terminal is wide.
const MAX_BLANK_COLUMNS: usize = 1024;

/// The current line with a cursor. A column is a character. Movements cost what they pass over, not
/// the length of the line, so that output cannot make a chunk slow.
#[derive(Debug, Default)]
struct LineBuffer {
    /// Complete characters.
    text: Vec<u8>,
    /// Offset of the next character: a character boundary.
    cursor: usize,
    /// Blank columns between the end of the text and the cursor. They appear only if something
    /// follows.
    blank: usize,
}

impl LineBuffer {
    /// Writes at the cursor, overwriting text.
    fn write(&mut self, mut written: &str, settled: &mut Vec<u8>) {
        if self.blank > 0 && !written.is_empty() {
            let blank = std::mem::take(&mut self.blank);
            self.text.resize(self.text.len() + blank, b' ');
            self.cursor = self.text.len();
        }
        while !written.is_empty() {
            if self.cursor < self.text.len() {
                let (character, rest) = written.split_at(written.ceil_char_boundary(1));
                self.overwrite(character.as_bytes());
                written = rest;
                continue;
            }
            let capacity = MAX_LINE_BYTES.saturating_sub(self.text.len());
            let (fits, rest) = written.split_at(written.floor_char_boundary(capacity));
            self.text.extend_from_slice(fits.as_bytes());
            self.cursor = self.text.len();
            written = rest;
            if !written.is_empty() {
                self.settle(settled);
            }
        }
    }

    /// Ends the line.
    fn end(&mut self, settled: &mut Vec<u8>) {
        self.settle(settled);
        settled.push(b'\n');
    }

    /// Ends the line if it is not empty.
    fn end_if_not_empty(&mut self, settled: &mut Vec<u8>) {
        if !self.text.is_empty() {
            self.end(settled);
        }
    }

    /// Settles the line as it is.
    fn settle(&mut self, settled: &mut Vec<u8>) {
        settled.extend_from_slice(&self.text);
        self.text.clear();
        (self.cursor, self.blank) = (0, 0);
    }

    /// Moves the cursor to a column, counted from 0.
    fn move_to(&mut self, column: usize) {
        (self.cursor, self.blank) = (0, 0);
        self.move_right(column);
    }

    /// Moves the cursor left, at most to the start.
    fn move_left(&mut self, columns: usize) {
        let over_blank = columns.min(self.blank);
        self.blank -= over_blank;
        for _ in over_blank..columns {
            let before = &self.text[..self.cursor];
            let Some(start) = before.iter().rposition(|byte| is_char_start(*byte)) else {
                return;
            };
            self.cursor = start;
        }
    }

    /// Moves the cursor right.
    fn move_right(&mut self, columns: usize) {
        for passed in 0..columns {
            if self.cursor == self.text.len() {
                self.blank = (self.blank + columns - passed).min(MAX_BLANK_COLUMNS);
                return;
            }
            self.cursor = self.next(self.cursor);
        }
    }

    /// Removes the text from the cursor on.
    fn erase_to_end(&mut self) {
        self.text.truncate(self.cursor);
    }

    /// Blanks the text before the cursor.
    fn erase_to_start(&mut self) {
        if self.cursor == self.text.len() {
            self.erase();
            return;
        }
        let column = self.column();
        self.text.drain(..self.cursor - column);
        self.text[..column].fill(b' ');
        self.cursor = column;
    }

    /// Blanks the line. The cursor keeps its column.
    fn erase(&mut self) {
        self.blank = self.column().min(MAX_BLANK_COLUMNS);
        self.text.clear();
        self.cursor = 0;
    }

    /// Removes characters at the cursor; the rest moves left.
    fn delete(&mut self, count: usize) {
        let mut end = self.cursor;
        for _ in 0..count {
            if end == self.text.len() {
                break;
            }
            end = self.next(end);
        }
        self.text.drain(self.cursor..end);
    }

    /// Returns the text of the line.
    fn text(&self) -> &[u8] {
        &self.text
    }

    fn overwrite(&mut self, character: &[u8]) {
        let overwritten = self.cursor..self.next(self.cursor);
        if overwritten.len() == character.len() {
            self.text[overwritten].copy_from_slice(character);
        } else {
            self.text.splice(overwritten, character.iter().copied());
        }
        self.cursor += character.len();
    }

    /// Returns the offset of the next character.
    fn next(&self, offset: usize) -> usize {
        let following = self.text.iter().skip(offset + 1);
        let next = following.take_while(|byte| !is_char_start(**byte)).count();
        (offset + 1 + next).min(self.text.len())
    }

    fn column(&self) -> usize {
        let before = self.text[..self.cursor].iter();
        before.filter(|byte| is_char_start(**byte)).count() + self.blank
    }
}

/// Returns whether a character starts with this byte.
fn is_char_start(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

/// Parser state of one stream.
#[derive(Debug, Default)]
struct EscapeParser {
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
    fn feed(&mut self, mut bytes: &[u8], line: &mut LineBuffer, settled: &mut Vec<u8>) {
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
    fn finish(&mut self, line: &mut LineBuffer, settled: &mut Vec<u8>) {
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
