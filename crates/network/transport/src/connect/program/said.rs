//! What a program says on standard error, line by line.

use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest line that is kept; what a line has beyond it is dropped.
const MAX_LINE_BYTES: usize = 4 << 10;
/// Bytes asked for in one read.
const READ_BYTES: usize = 4 << 10;

/// Lines out of a stream of bytes.
#[derive(Debug)]
pub(super) struct Said<R> {
    input: Option<R>,
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Said<R> {
    /// Takes lines from `input`, or none.
    pub(super) fn new(input: Option<R>) -> Self {
        Self {
            input,
            line: Vec::new(),
        }
    }

    /// Tells whether more may come.
    pub(super) fn is_open(&self) -> bool {
        self.input.is_some()
    }

    /// Reads once, and returns the lines that ended with it. Cancelling loses nothing.
    pub(super) async fn next(&mut self) -> Vec<String> {
        let mut bytes = [0; READ_BYTES];
        let count = match &mut self.input {
            Some(input) => input.read(&mut bytes).await.unwrap_or(0),
            None => 0,
        };
        let mut lines = Vec::new();
        if count == 0 {
            self.input = None;
            self.end_line(&mut lines);
            return lines;
        }
        let mut parts = bytes[..count].split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let room = MAX_LINE_BYTES - self.line.len();
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            if parts.peek().is_some() {
                self.end_line(&mut lines);
            }
        }
        lines
    }

    /// Ends a line; blank ones do not count.
    fn end_line(&mut self, lines: &mut Vec<String>) {
        let line = std::mem::take(&mut self.line);
        let line: String = String::from_utf8_lossy(&line)
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        if !line.trim().is_empty() {
            lines.push(line.trim_end().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8]) -> Vec<String> {
        let mut said = Said::new(Some(input));
        let mut lines = Vec::new();
        while said.is_open() {
            lines.extend(said.next().await);
        }
        lines
    }

    #[tokio::test]
    async fn lines_are_told_apart_and_blank_ones_are_not_told() {
        let said = lines(b"one\r\n\n  \ntwo \x1b[31mred\xff\nlast").await;
        assert_eq!(said, ["one", "two  [31mred\u{fffd}", "last"]);
    }

    #[tokio::test]
    async fn a_long_line_is_cut_and_the_next_one_is_whole() {
        let mut text = vec![b'x'; 3 * MAX_LINE_BYTES];
        text.extend_from_slice(b"\nnext\n");
        let said = lines(&text).await;
        assert_eq!(said, ["x".repeat(MAX_LINE_BYTES), "next".to_owned()]);
    }
}
