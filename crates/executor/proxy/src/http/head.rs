//! Reads the head of a message: all up to the first empty line.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::limits;

/// Bytes of which a head is the beginning.
#[derive(Debug, Default)]
pub(super) struct HeadBuffer {
    bytes: Vec<u8>,
    searched: usize,
}

impl HeadBuffer {
    /// Starts with bytes that were read after something else.
    pub(super) fn starting_with(bytes: Vec<u8>) -> Self {
        Self { bytes, searched: 0 }
    }

    /// Reads until there is a head; returns it, and what came after it. Cancelling keeps what was
    /// read.
    pub(super) async fn read(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
    ) -> Result<(Vec<u8>, Vec<u8>), HeadError> {
        loop {
            if let Some(end) = self.find_end() {
                let rest = self.bytes.split_off(end);
                self.searched = 0;
                return Ok((std::mem::take(&mut self.bytes), rest));
            }
            if self.bytes.len() >= limits::MAX_HEAD {
                return Err(HeadError::TooLarge);
            }
            let room = limits::MAX_HEAD - self.bytes.len();
            self.bytes.reserve(room.min(4096));
            let mut piece = reader.take(u64::try_from(room).unwrap_or(u64::MAX));
            if piece
                .read_buf(&mut self.bytes)
                .await
                .map_err(HeadError::Read)?
                == 0
            {
                return Err(if self.bytes.is_empty() {
                    HeadError::Nothing
                } else {
                    HeadError::Cut
                });
            }
        }
    }

    /// Finds the end of the head, looking at each byte once. A line may end without a carriage
    /// return; who does not like that can tell from the head.
    fn find_end(&mut self) -> Option<usize> {
        let end = (self.searched..self.bytes.len()).find(|&at| {
            let before = &self.bytes[..at];
            self.bytes[at] == b'\n' && (before.ends_with(b"\n") || before.ends_with(b"\n\r"))
        });
        self.searched = self.bytes.len();
        end.map(|at| at + 1)
    }
}

/// Why there is no head.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeadError {
    /// Peer: it closed the connection without a word.
    #[error("nothing was sent")]
    Nothing,
    /// Peer: it closed the connection in the middle.
    #[error("the head is incomplete")]
    Cut,
    /// Peer: it does not come to an end.
    #[error("the head is too large")]
    TooLarge,
    /// Peer: the connection failed.
    #[error("cannot read the head")]
    Read(#[source] io::Error),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    async fn read(mut bytes: &[u8]) -> Result<(Vec<u8>, Vec<u8>), HeadError> {
        HeadBuffer::default().read(&mut bytes).await
    }

    #[tokio::test]
    async fn a_head_ends_at_its_empty_line() {
        for (bytes, head) in [
            ("a\r\nb\r\n\r\nrest", "a\r\nb\r\n\r\n"),
            ("a\n\nrest", "a\n\n"),
            ("a\n\r\nrest", "a\n\r\n"),
            ("\r\n\r\nrest", "\r\n\r\n"),
        ] {
            let (found, rest) = read(bytes.as_bytes()).await.unwrap();
            assert_eq!(found, head.as_bytes());
            assert_eq!(rest, b"rest");
        }
    }

    #[tokio::test]
    async fn heads_without_end_are_refused() {
        assert!(matches!(read(b"").await, Err(HeadError::Nothing)));
        assert!(matches!(
            read(b"GET / HTTP/1.1\r\n").await,
            Err(HeadError::Cut)
        ));
        let endless = vec![b'a'; limits::MAX_HEAD + 10];
        assert!(matches!(read(&endless).await, Err(HeadError::TooLarge)));
    }

    proptest! {
        #[test]
        fn bytes_that_come_one_by_one_make_the_same_head(text in "[a\r\n]{0,30}") {
            let bytes = text.into_bytes();
            let mut whole = HeadBuffer::starting_with(bytes.clone());
            let expected = whole.find_end();
            let mut single = HeadBuffer::default();
            let found = bytes.iter().find_map(|&byte| {
                single.bytes.push(byte);
                single.find_end()
            });
            prop_assert_eq!(found, expected);
        }
    }
}
