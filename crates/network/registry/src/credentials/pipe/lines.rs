//! Lines of bounded length, out of any reader.

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};

use super::PipeError;

/// Longest line, its end included.
pub(super) const MAX_LINE: usize = 16_384;

/// Reads lines. A line counts once its end is there.
#[derive(Debug)]
pub(in crate::credentials) struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(in crate::credentials) fn new(reader: R) -> Self {
        Self {
            reader: BufReader::new(reader),
            line: Vec::new(),
        }
    }

    /// Returns the next line without its end, or none when the input has ended. Half a line is none.
    /// Cancelling loses nothing.
    pub(in crate::credentials) async fn next(&mut self) -> Result<Option<Vec<u8>>, PipeError> {
        loop {
            let read = self.reader.fill_buf().await.map_err(PipeError::Read)?;
            if read.is_empty() {
                return Ok(None);
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(read.len(), |end| end + 1);
            if self.line.len() + taken > MAX_LINE {
                return Err(PipeError::TooLong(MAX_LINE));
            }
            let text = read.get(..end.unwrap_or(taken)).unwrap_or_default();
            self.line.extend_from_slice(text);
            AsyncBufRead::consume(std::pin::Pin::new(&mut self.reader), taken);
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.line)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(input: &[u8]) -> (Vec<usize>, Option<PipeError>) {
        let (mut lines, mut found) = (Lines::new(input), Vec::new());
        loop {
            match lines.next().await {
                Ok(Some(line)) => found.push(line.len()),
                Ok(None) => return (found, None),
                Err(error) => return (found, Some(error)),
            }
        }
    }

    #[tokio::test]
    async fn a_line_counts_once_its_end_is_there() {
        assert!(matches!(all(b"ab\n\nc\n").await, (found, None) if found == [2, 0, 1]));
        assert!(matches!(all(b"ab\nrest").await, (found, None) if found == [2]));
        assert!(matches!(all(b"").await, (found, None) if found.is_empty()));
    }

    #[tokio::test]
    async fn the_end_counts_towards_the_length() {
        let mut line = vec![b'x'; MAX_LINE - 1];
        line.push(b'\n');
        line.extend_from_within(..);
        assert!(matches!(all(&line).await, (found, None) if found.len() == 2));
        line.insert(0, b'x');
        let refused = all(&line).await;
        assert!(matches!(refused, (found, Some(PipeError::TooLong(MAX_LINE))) if found.is_empty()));
        // It is refused before its end comes.
        let endless = vec![b'x'; MAX_LINE + 1];
        assert!(matches!(
            all(&endless).await,
            (_, Some(PipeError::TooLong(_)))
        ));
    }
}
