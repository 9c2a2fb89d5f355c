//! Output as text: no escape codes, no overwritten progress lines, no invalid UTF-8.
//!
//! Each stream has its own place in a sequence or a character; the line that they write to is one, as on a
//! screen. Invariant: the text depends on the bytes and their order, not on how they were cut into chunks.
//! Not here: full-screen programs, whose output is no text (`screen`).

mod escape;
mod line;

#[cfg(test)]
mod tests;

use exec_wire::process::OutputStream;

use self::{escape::Escapes, line::Line};

/// Turns output into text.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    streams: [Escapes; 3],
    line: Line,
}

impl Plain {
    /// Takes output, and appends to `text` what it settles. The last line is not settled before it ends:
    /// it can still be overwritten.
    pub(crate) fn feed(&mut self, stream: OutputStream, bytes: &[u8], text: &mut Vec<u8>) {
        self.streams[stream as usize].feed(bytes, &mut self.line, text);
    }

    /// Settles what there is of the last line. What comes behind it begins a line of its own, as far as
    /// overwriting goes.
    pub(super) fn settle(&mut self, text: &mut Vec<u8>) {
        self.line.settle(text);
    }

    /// Settles everything: nothing follows.
    pub(super) fn finish(&mut self, text: &mut Vec<u8>) {
        for stream in &mut self.streams {
            stream.finish(&mut self.line, text);
        }
        self.settle(text);
    }

    /// Returns what there is of the last line.
    pub(crate) fn line(&self) -> &[u8] {
        self.line.text()
    }
}
