//! Lines out of chunks that are cut anywhere.

use std::collections::VecDeque;

/// Gathers bytes until a line is whole.
#[derive(Debug)]
pub(crate) struct Lines {
    limit: usize,
    partial: Vec<u8>,
    whole: VecDeque<Vec<u8>>,
}

/// Peer: a line has more bytes than it may have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TooLong;

impl Lines {
    /// Begins empty. A line may have `limit` bytes, its end not counted.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            partial: Vec::new(),
            whole: VecDeque::new(),
        }
    }

    /// Takes a chunk. Lines before one that is too long can still be taken.
    pub(crate) fn push(&mut self, mut chunk: &[u8]) -> Result<(), TooLong> {
        while let Some(end) = memchr::memchr(b'\n', chunk) {
            self.append(&chunk[..end])?;
            let mut line = std::mem::take(&mut self.partial);
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            self.whole.push_back(line);
            chunk = &chunk[end + 1..];
        }
        self.append(chunk)
    }

    /// Returns the next whole line, without its end.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        self.whole.pop_front()
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.partial.len() + bytes.len() > self.limit {
            return Err(TooLong);
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(lines: &mut Lines) -> Vec<String> {
        std::iter::from_fn(|| lines.next())
            .map(|line| String::from_utf8(line).unwrap())
            .collect()
    }

    #[test]
    fn lines_are_the_same_however_they_were_cut() {
        let text = "one\ntwo\r\n\nthr\u{e9}e\nrest".as_bytes();
        for size in 1..=text.len() {
            let mut lines = Lines::new(100);
            for chunk in text.chunks(size) {
                lines.push(chunk).unwrap();
            }
            assert_eq!(
                taken(&mut lines),
                ["one", "two", "", "thr\u{e9}e"],
                "cut by {size}"
            );
        }
    }

    #[test]
    fn a_line_is_at_most_as_long_as_the_limit() {
        let mut lines = Lines::new(4);
        assert_eq!(lines.push(b"ab\nabcd\n"), Ok(()));
        assert_eq!(lines.push(b"abc"), Ok(()));
        assert_eq!(lines.push(b"de\n"), Err(TooLong));
        assert_eq!(taken(&mut lines), ["ab", "abcd"]);
    }
}
