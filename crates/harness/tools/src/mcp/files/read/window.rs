//! Some lines of a file that comes in parts.

/// Text that is shown of one file: a third of a small model's window.
const MAX_BYTES: usize = 128 << 10;
/// Longest line that is shown: one of a generated file would hide all others.
const MAX_LINE_BYTES: usize = 16 << 10;

/// Whether lines have their numbers in front.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Numbers {
    /// They have.
    Shown,
    /// They have not.
    Hidden,
}

/// The lines from one number on, as many as there is room for.
#[derive(Debug)]
pub(super) struct Window {
    first: usize,
    limit: usize,
    numbers: Numbers,
    /// The line that comes next, counted from 1.
    next: usize,
    /// A line whose end has not come yet, cut, and how long it is.
    line: Vec<u8>,
    length: usize,
    text: String,
    shown: usize,
    full: bool,
}

impl Window {
    /// Shows lines from `first` on.
    pub(super) fn new(first: usize, limit: usize, numbers: Numbers) -> Self {
        Self {
            first,
            limit,
            numbers,
            next: 1,
            line: Vec::new(),
            length: 0,
            text: String::new(),
            shown: 0,
            full: false,
        }
    }

    /// Takes the next part.
    pub(super) fn take(&mut self, block: &[u8]) {
        for part in block.split_inclusive(|byte| *byte == b'\n') {
            if self.full {
                return;
            }
            if self.next >= self.first {
                let room = MAX_LINE_BYTES.saturating_sub(self.line.len());
                self.line.extend_from_slice(&part[..part.len().min(room)]);
            }
            self.length += part.len();
            if part.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    /// Whether what comes will not be shown.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// What is shown, and where to go on; or why there is nothing to show.
    pub(super) fn into_text(mut self) -> Result<String, String> {
        if self.length > 0 && !self.full {
            self.end_line();
        }
        let lines = self.next - 1;
        if lines == 0 && !self.full {
            return Ok("[the file is empty]".to_owned());
        }
        if self.shown == 0 && !self.full {
            return Err(format!("the file has only {lines} lines"));
        }
        if self.full {
            let (first, next) = (self.first, self.first + self.shown);
            let last = next - 1;
            self.text.push_str(&format!(
                "[lines {first} to {last}; go on with offset {next}]\n"
            ));
        }
        Ok(self.text)
    }

    fn end_line(&mut self) {
        let (line, length) = (std::mem::take(&mut self.line), self.length);
        (self.length, self.next) = (0, self.next + 1);
        let number = self.next - 1;
        if number < self.first {
            return;
        }
        if self.shown == self.limit || self.text.len() + line.len() > MAX_BYTES {
            self.full = true;
            return;
        }
        if self.numbers == Numbers::Shown {
            self.text.push_str(&format!("{number:>6}\t"));
        }
        self.text.push_str(&String::from_utf8_lossy(&line));
        if length > line.len() {
            self.text.push_str(&format!("… [line of {length} bytes]"));
        }
        if !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.shown += 1;
    }
}
