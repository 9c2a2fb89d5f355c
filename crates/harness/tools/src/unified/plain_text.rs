//! Converts output to plain text: no escape codes, no overwritten progress lines, no invalid UTF-8.
//!
//! Each stream has its own parser state; all write to one line, as on a screen. Invariant: the text
//! depends on the bytes and their order, not on chunk boundaries. Elsewhere: full-screen programs
//! ([`screen`](super::screen)).

mod escape_parser;
#[cfg(test)]
mod tests;

use exec_wire::process::OutputStream;

use self::escape_parser::EscapeParser;

/// Converts output to text.
#[derive(Debug, Default)]
pub(crate) struct PlainText {
    streams: [EscapeParser; 3],
    line: LineBuffer,
}

impl PlainText {
    /// Adds output and appends settled text to `text`. The last line is settled when it ends,
    /// because it can still be overwritten.
    pub(crate) fn feed(&mut self, stream: OutputStream, bytes: &[u8], text: &mut Vec<u8>) {
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
    pub(crate) fn line(&self) -> &[u8] {
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
pub(super) struct LineBuffer {
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
    pub(super) fn write(&mut self, mut written: &str, settled: &mut Vec<u8>) {
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
            let room = MAX_LINE_BYTES.saturating_sub(self.text.len());
            let (fits, rest) = written.split_at(written.floor_char_boundary(room));
            self.text.extend_from_slice(fits.as_bytes());
            self.cursor = self.text.len();
            written = rest;
            if !written.is_empty() {
                self.settle(settled);
            }
        }
    }

    /// Ends the line.
    pub(super) fn end(&mut self, settled: &mut Vec<u8>) {
        self.settle(settled);
        settled.push(b'\n');
    }

    /// Ends the line if it is not empty.
    pub(super) fn end_if_not_empty(&mut self, settled: &mut Vec<u8>) {
        if !self.text.is_empty() {
            self.end(settled);
        }
    }

    /// Settles the line as it is.
    pub(super) fn settle(&mut self, settled: &mut Vec<u8>) {
        settled.extend_from_slice(&self.text);
        self.text.clear();
        (self.cursor, self.blank) = (0, 0);
    }

    /// Moves the cursor to a column, counted from 0.
    pub(super) fn move_to(&mut self, column: usize) {
        (self.cursor, self.blank) = (0, 0);
        self.move_right(column);
    }

    /// Moves the cursor left, at most to the start.
    pub(super) fn move_left(&mut self, columns: usize) {
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
    pub(super) fn move_right(&mut self, columns: usize) {
        for passed in 0..columns {
            if self.cursor == self.text.len() {
                self.blank = (self.blank + columns - passed).min(MAX_BLANK_COLUMNS);
                return;
            }
            self.cursor = self.next(self.cursor);
        }
    }

    /// Removes the text from the cursor on.
    pub(super) fn erase_to_end(&mut self) {
        self.text.truncate(self.cursor);
    }

    /// Blanks the text before the cursor.
    pub(super) fn erase_to_start(&mut self) {
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
    pub(super) fn erase(&mut self) {
        self.blank = self.column().min(MAX_BLANK_COLUMNS);
        self.text.clear();
        self.cursor = 0;
    }

    /// Removes characters at the cursor; the rest moves left.
    pub(super) fn delete(&mut self, count: usize) {
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
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    fn overwrite(&mut self, character: &[u8]) {
        let under = self.cursor..self.next(self.cursor);
        if under.len() == character.len() {
            self.text[under].copy_from_slice(character);
        } else {
            self.text.splice(under, character.iter().copied());
        }
        self.cursor += character.len();
    }

    /// Returns the offset of the next character.
    fn next(&self, place: usize) -> usize {
        let behind = self.text.iter().skip(place + 1);
        let next = behind.take_while(|byte| !is_char_start(**byte)).count();
        (place + 1 + next).min(self.text.len())
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
