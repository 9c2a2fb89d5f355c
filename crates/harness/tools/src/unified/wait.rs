//! Waits for a command: for its exit, idle time, a pattern or a byte count, up to a deadline. Also
//! the incremental pattern search.
//!
//! A wait takes no output, so dropping it loses nothing.

use std::time::Duration;

use regex::bytes::Regex;
use tokio::{
    pin,
    time::{Instant, sleep_until},
};

use super::{
    call::WaitFor,
    output_buffers::{MatchScope, OutputBuffers},
    process::UnifiedExecProcess,
};

/// A started wait.
#[derive(Debug)]
pub(super) struct OutputWait<'a> {
    process: &'a UnifiedExecProcess,
    wait: &'a WaitFor,
    /// Output before this position does not count.
    from: u64,
    deadline: Instant,
}

impl<'a> OutputWait<'a> {
    /// Starts a wait.
    pub(super) fn begin(
        process: &'a UnifiedExecProcess,
        wait: &'a WaitFor,
        since: MatchScope,
        deadline: Instant,
    ) -> Self {
        let mut buffers = process.shared.lock();
        if let WaitFor::Pattern(regex) = wait {
            buffers.start_matching(regex.clone(), since);
        }
        let from = match since {
            MatchScope::LastCall => buffers.shown,
            MatchScope::Now => buffers.bytes,
        };
        drop(buffers);
        Self {
            process,
            wait,
            from,
            deadline,
        }
    }

    /// Extends the deadline.
    pub(super) fn extend(&mut self, deadline: Instant) {
        self.deadline = self.deadline.max(deadline);
    }

    /// Waits. Output written before the deadline is available afterwards.
    pub(super) async fn done(self) {
        let shared = &self.process.shared;
        loop {
            let changed = shared.changed.notified();
            pin!(changed);
            let Some(until) = self.next_check(&mut shared.lock()) else {
                return;
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(until) => if until >= self.deadline { break },
            }
        }
        self.process.catch_up().await;
    }

    /// Returns when to check again, if nothing changes before. `None`: the awaited condition is
    /// met.
    fn next_check(&self, buffers: &mut OutputBuffers) -> Option<Instant> {
        if buffers.end_reported {
            return None;
        }
        let until = match self.wait {
            WaitFor::Exit => self.deadline,
            WaitFor::Pattern(_) => match buffers.poll_match() {
                MatchState::Found => return None,
                MatchState::NotFound => self.deadline,
                MatchState::RetryAt(then) => then,
            },
            WaitFor::Bytes(count) if buffers.bytes - self.from >= *count as u64 => return None,
            WaitFor::Bytes(_) => self.deadline,
            WaitFor::Idle(pause) => {
                let last = buffers.last_output.filter(|_| buffers.bytes > self.from);
                // An idle time too long to be represented never elapses.
                let idle_at = last.and_then(|last| last.checked_add(*pause));
                if idle_at.is_some_and(|idle_at| idle_at <= Instant::now()) {
                    return None;
                }
                idle_at.unwrap_or(self.deadline)
            }
        };
        Some(until.min(self.deadline))
    }
}

impl Drop for OutputWait<'_> {
    fn drop(&mut self) {
        self.process.shared.lock().stop_matching();
    }
}

/// Text that is searched again when more follows. A match that starts earlier was found before, or
/// spans more than this.
const MAX_MATCH_BYTES: usize = 16 << 10;
/// Context kept before that, so that a word or line does not seem to start there: one character.
const CONTEXT_BYTES: usize = 4;
/// Maximum unsearched text. Beyond it, the text is searched at once and then dropped.
const MAX_UNSEARCHED_BYTES: usize = 256 << 10;
/// Minimum interval between searches: not noticeable.
const MIN_SEARCH_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum interval between searches.
const MAX_SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// Factor between the duration of a search and the interval to the next one. Searches run on the
/// server's thread and cover up to 16 KiB again, so slow patterns are searched less often.
const SEARCH_BACKOFF_FACTOR: u32 = 4;

/// Searches output for a pattern as it arrives.
#[derive(Debug)]
pub(super) struct PatternMatcher {
    regex: Regex,
    /// The last settled text that may match.
    text: Vec<u8>,
    /// Offset in it where a match may start.
    from: usize,
    /// Whether output arrived since the last search.
    has_unsearched: bool,
    not_before: Option<Instant>,
    matched: bool,
}

/// State of the search.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MatchState {
    Found,
    /// No match so far.
    NotFound,
    /// The latest output is not searched yet. Search again at this time.
    RetryAt(Instant),
}

/// Start of the text that may match.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TextStart {
    /// At its first byte.
    AtStart,
    /// Other text precedes it.
    MidStream,
}

impl PatternMatcher {
    /// Starts the search in this text.
    pub(super) fn new(regex: Regex, text: Vec<u8>, begins: TextStart) -> Self {
        Self {
            regex,
            from: match begins {
                TextStart::AtStart => 0,
                TextStart::MidStream => CONTEXT_BYTES.min(text.len()),
            },
            has_unsearched: !text.is_empty(),
            text,
            not_before: None,
            matched: false,
        }
    }

    /// Searches text without keeping it.
    pub(super) fn search_once(&mut self, text: &[u8]) {
        self.matched |= self.regex.is_match(text);
    }

    /// Adds settled text.
    pub(super) fn push(&mut self, text: &[u8]) {
        if !self.matched {
            self.text.extend_from_slice(text);
        }
    }

    /// Records new output. `line` is the current unsettled line.
    pub(super) fn handle_output(&mut self, line: &[u8]) {
        self.has_unsearched = true;
        if self.text.len() > MAX_UNSEARCHED_BYTES {
            self.search(line);
        }
    }

    /// Searches, if it is time. `line` is the current unsettled line.
    pub(super) fn poll_match(&mut self, line: &[u8]) -> MatchState {
        if self.has_unsearched && !self.matched {
            match self.not_before {
                Some(retry_at) if retry_at > Instant::now() => {
                    return MatchState::RetryAt(retry_at);
                }
                Some(_) | None => self.search(line),
            }
        }
        if self.matched {
            MatchState::Found
        } else {
            MatchState::NotFound
        }
    }

    fn search(&mut self, line: &[u8]) {
        if self.matched {
            return;
        }
        let started_at = Instant::now();
        let settled = self.text.len();
        self.text.extend_from_slice(line);
        self.matched = self.regex.is_match_at(&self.text, self.from);
        self.text.truncate(settled);
        let excess = settled.saturating_sub(MAX_MATCH_BYTES + CONTEXT_BYTES);
        if excess > 0 {
            self.text.drain(..excess);
            self.from = CONTEXT_BYTES;
        }
        self.has_unsearched = false;
        let backoff = (started_at.elapsed() * SEARCH_BACKOFF_FACTOR)
            .clamp(MIN_SEARCH_INTERVAL, MAX_SEARCH_INTERVAL);
        self.not_before = Some(Instant::now() + backoff);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> PatternMatcher {
        PatternMatcher::new(Regex::new(text).unwrap(), Vec::new(), TextStart::AtStart)
    }

    #[tokio::test(start_paused = true)]
    async fn output_soon_after_a_search_is_searched_later() {
        let mut pattern = pattern("two");
        pattern.push(b"one\n");
        pattern.handle_output(b"");
        assert_eq!(pattern.poll_match(b""), MatchState::NotFound);
        pattern.handle_output(b"tw");
        let retry_at = Instant::now() + MIN_SEARCH_INTERVAL;
        assert_eq!(pattern.poll_match(b"tw"), MatchState::RetryAt(retry_at));
        pattern.handle_output(b"two");
        assert_eq!(pattern.poll_match(b"two"), MatchState::RetryAt(retry_at));
        tokio::time::advance(MIN_SEARCH_INTERVAL).await;
        assert_eq!(pattern.poll_match(b"two"), MatchState::Found);
    }

    #[tokio::test(start_paused = true)]
    async fn unsearched_text_is_bounded_and_not_missed() {
        let mut pattern = pattern("needle");
        pattern.push(b"hay\n");
        pattern.handle_output(b"");
        assert_eq!(pattern.poll_match(b""), MatchState::NotFound);
        pattern.push(b"needle\n");
        for _ in 0..1000 {
            pattern.push(&[b'x'; 1024]);
            pattern.handle_output(b"");
            assert!(pattern.text.len() <= MAX_UNSEARCHED_BYTES + 1024);
        }
        assert_eq!(pattern.poll_match(b""), MatchState::Found);
    }
}
