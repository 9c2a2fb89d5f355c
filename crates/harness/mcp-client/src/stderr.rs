//! What a server writes to its standard error: logged, and the last of it kept for errors.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Lines that are kept: a stack trace's end.
const KEPT_LINES: usize = 20;
/// Longest part of a line that is kept or logged.
const KEPT_LINE_BYTES: usize = 1 << 10;

/// The standard error of one server.
#[derive(Debug)]
pub(crate) struct Stderr {
    server: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    kept: VecDeque<String>,
    /// A line without its end, as far as it will be kept.
    partial: Vec<u8>,
}

impl Stderr {
    pub(crate) fn new(server: &str) -> Self {
        Self {
            server: server.to_owned(),
            state: Mutex::default(),
        }
    }

    /// Takes a chunk, cut anywhere.
    pub(crate) fn push(&self, chunk: &[u8]) {
        let mut state = self.lock();
        let mut parts = chunk.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let room = KEPT_LINE_BYTES.saturating_sub(state.partial.len());
            state
                .partial
                .extend_from_slice(&part[..room.min(part.len())]);
            if parts.peek().is_some() {
                let line = std::mem::take(&mut state.partial);
                self.keep(&mut state, &line);
            }
        }
    }

    /// Returns the last lines, and what has no end yet.
    pub(crate) fn last_words(&self) -> String {
        let state = self.lock();
        let partial = String::from_utf8_lossy(&state.partial);
        let kept = state.kept.iter().map(String::as_str);
        let lines: Vec<&str> = kept.chain([partial.trim_end()]).collect();
        lines.join("\n").trim_end().to_owned()
    }

    fn keep(&self, state: &mut State, line: &[u8]) {
        let line = String::from_utf8_lossy(line).trim_end().to_owned();
        if line.is_empty() {
            return;
        }
        tracing::info!(server = self.server, "{line}");
        if state.kept.len() == KEPT_LINES {
            state.kept.pop_front();
        }
        state.kept.push_back(line);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_however_they_were_cut() {
        for size in [1, 3, 1000] {
            let stderr = Stderr::new("s");
            for chunk in b"warning: a\r\n\nerror: b\nhalf".chunks(size) {
                stderr.push(chunk);
            }
            assert_eq!(stderr.last_words(), "warning: a\nerror: b\nhalf");
        }
    }

    #[test]
    fn lines_are_bounded_in_number_and_length() {
        let stderr = Stderr::new("s");
        for number in 0..1000 {
            stderr.push(format!("{number} ").as_bytes());
            stderr.push(&vec![b'x'; 10_000]);
            stderr.push(b"\n");
        }
        stderr.push(&vec![b'y'; 10_000]);
        let words = stderr.last_words();
        let lines: Vec<&str> = words.lines().collect();
        assert_eq!(lines.len(), KEPT_LINES + 1);
        assert!(lines[0].starts_with("980 x"));
        assert!(lines.iter().all(|line| line.len() <= KEPT_LINE_BYTES));
    }

    #[test]
    fn without_a_word_there_are_no_last_words() {
        assert_eq!(Stderr::new("s").last_words(), "");
    }
}
