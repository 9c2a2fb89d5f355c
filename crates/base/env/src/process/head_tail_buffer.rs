//! Keeps the head and the tail of a byte stream within a limit.

use std::collections::VecDeque;

use exec_core::output_log::HeadTail;

/// Keeps the first and the last bytes of a stream, half of the limit each.
#[derive(Debug)]
pub struct HeadTailBuffer {
    head: Vec<u8>,
    head_limit: usize,
    tail: VecDeque<u8>,
    tail_limit: usize,
    omitted: u64,
}

/// Contents of a buffer: everything, or its head and tail.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HeadTailParts {
    /// The head.
    pub head: Vec<u8>,
    /// The bytes after the head, or the tail if bytes were omitted in between.
    pub tail: Vec<u8>,
    /// Number of omitted bytes between head and tail.
    pub omitted: u64,
}

impl HeadTailBuffer {
    /// Creates an empty buffer that keeps at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        let head_limit = max_bytes / 2;
        Self {
            head: Vec::new(),
            head_limit,
            tail: VecDeque::new(),
            tail_limit: max_bytes - head_limit,
            omitted: 0,
        }
    }

    /// Appends `data` and drops bytes from the middle if the limit is exceeded.
    pub fn push(&mut self, data: &[u8]) {
        let room = self.head_limit - self.head.len();
        let (head, rest) = data.split_at(room.min(data.len()));
        self.head.extend_from_slice(head);
        // Skip bytes that would be dropped again immediately.
        let kept = &rest[rest.len().saturating_sub(self.tail_limit)..];
        let excess = (self.tail.len() + kept.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..excess);
        self.tail.extend(kept);
        self.omitted += (rest.len() - kept.len() + excess) as u64;
    }

    /// Empties the buffer and returns its contents.
    pub fn take(&mut self) -> HeadTailParts {
        HeadTailParts {
            head: std::mem::take(&mut self.head),
            tail: std::mem::take(&mut self.tail).into(),
            omitted: std::mem::take(&mut self.omitted),
        }
    }

    /// Returns the head.
    pub fn first(&self) -> &[u8] {
        &self.head
    }

    /// Returns how many bytes were dropped from the middle.
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// Returns the last `count` bytes, or as many as were kept.
    pub fn last(&self, count: usize) -> Vec<u8> {
        let from_tail = count.min(self.tail.len());
        let mut last = Vec::new();
        if self.omitted == 0 {
            let from_head = (count - from_tail).min(self.head.len());
            last.extend_from_slice(&self.head[self.head.len() - from_head..]);
        }
        last.extend(self.tail.range(self.tail.len() - from_tail..));
        last
    }

    /// Returns head and tail joined, and the number of bytes omitted between them.
    pub(super) fn into_head_tail(mut self) -> HeadTail {
        let HeadTailParts {
            head: mut data,
            tail,
            omitted,
        } = self.take();
        data.extend(tail);
        HeadTail { data, omitted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(max_bytes: usize, pieces: &[&str]) -> (String, u64) {
        let mut buffer = HeadTailBuffer::new(max_bytes);
        for piece in pieces {
            buffer.push(piece.as_bytes());
        }
        let HeadTail { data, omitted } = buffer.into_head_tail();
        (String::from_utf8(data).unwrap(), omitted)
    }

    #[test]
    fn output_within_the_limit_is_kept_whole() {
        assert_eq!(kept(6, &["ab", "", "cdef"]), ("abcdef".to_owned(), 0));
    }

    #[test]
    fn dropped_middle_is_counted_for_any_chunking() {
        let alphabet = "abcdefghijklmnopqrstuvwxyz";
        let letters: Vec<&str> = alphabet.split("").collect();
        let expected = ("abcxyz".to_owned(), 20);
        for pieces in [&[alphabet][..], &letters, &[&alphabet[..2], &alphabet[2..]]] {
            assert_eq!(kept(6, pieces), expected);
        }
        assert_eq!(kept(5, &[alphabet]), ("abxyz".to_owned(), 21));
    }

    #[test]
    fn zero_limit_keeps_nothing() {
        assert_eq!(kept(0, &["abc", "d"]), (String::new(), 4));
    }

    #[test]
    fn last_bytes_come_from_behind_the_gap() {
        let mut buffer = HeadTailBuffer::new(6);
        buffer.push(b"abcd");
        assert_eq!(buffer.last(2), b"cd");
        assert_eq!(buffer.last(9), b"abcd");
        buffer.push(b"efgh");
        assert_eq!(buffer.last(9), b"fgh");
        let ends = HeadTailParts {
            head: b"abc".to_vec(),
            tail: b"fgh".to_vec(),
            omitted: 2,
        };
        assert_eq!(buffer.take(), ends);
        assert_eq!(buffer.take(), HeadTailParts::default());
    }
}
