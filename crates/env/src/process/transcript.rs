//! The beginning and the end of a stream of bytes, under a cap.

use std::collections::VecDeque;

use exec_core::log::HeadTail;

/// Keeps the first and the last bytes it is given, half of the cap each.
#[derive(Debug)]
pub(super) struct Transcript {
    head: Vec<u8>,
    head_limit: usize,
    tail: VecDeque<u8>,
    tail_limit: usize,
    omitted: u64,
}

impl Transcript {
    /// Begins empty; at most `max_bytes` are kept.
    pub(super) fn new(max_bytes: usize) -> Self {
        let head_limit = max_bytes / 2;
        Self {
            head: Vec::new(),
            head_limit,
            tail: VecDeque::new(),
            tail_limit: max_bytes - head_limit,
            omitted: 0,
        }
    }

    /// Appends `data`; what no longer fits is dropped from the middle.
    pub(super) fn push(&mut self, data: &[u8]) {
        let room = self.head_limit - self.head.len();
        let (head, rest) = data.split_at(room.min(data.len()));
        self.head.extend_from_slice(head);
        // What would be pushed out again at once is not copied first.
        let kept = &rest[rest.len().saturating_sub(self.tail_limit)..];
        let excess = (self.tail.len() + kept.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..excess);
        self.tail.extend(kept);
        self.omitted += (rest.len() - kept.len() + excess) as u64;
    }

    /// Returns head and tail, one after the other, and how much is missing between them.
    pub(super) fn into_head_tail(self) -> HeadTail {
        let mut data = self.head;
        data.extend(self.tail);
        HeadTail {
            data,
            omitted: self.omitted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(max_bytes: usize, pieces: &[&str]) -> (String, u64) {
        let mut transcript = Transcript::new(max_bytes);
        for piece in pieces {
            transcript.push(piece.as_bytes());
        }
        let HeadTail { data, omitted } = transcript.into_head_tail();
        (String::from_utf8(data).unwrap(), omitted)
    }

    #[test]
    fn what_fits_is_kept_whole() {
        assert_eq!(kept(6, &["ab", "", "cdef"]), ("abcdef".to_owned(), 0));
    }

    #[test]
    fn the_middle_is_dropped_and_counted_however_it_was_cut() {
        let alphabet = "abcdefghijklmnopqrstuvwxyz";
        let letters: Vec<&str> = alphabet.split("").collect();
        let expected = ("abcxyz".to_owned(), 20);
        for pieces in [&[alphabet][..], &letters, &[&alphabet[..2], &alphabet[2..]]] {
            assert_eq!(kept(6, pieces), expected);
        }
        assert_eq!(kept(5, &[alphabet]), ("abxyz".to_owned(), 21));
    }

    #[test]
    fn without_a_cap_nothing_is_kept() {
        assert_eq!(kept(0, &["abc", "d"]), (String::new(), 4));
    }
}
