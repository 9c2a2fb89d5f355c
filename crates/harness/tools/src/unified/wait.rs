//! Waiting for a command: for its end, a pause, a pattern, some bytes, and never beyond the deadline.
//!
//! Nothing is taken here, so a wait that is dropped loses nothing.

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

/// A wait that has begun.
#[derive(Debug)]
pub(super) struct OutputWait<'a> {
    process: &'a UnifiedExecProcess,
    wait: &'a WaitFor,
    /// Output up to here does not count.
    from: u64,
    deadline: Instant,
}

impl<'a> OutputWait<'a> {
    /// Begins to wait. What is written from now on counts.
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

    /// Has the time be up later.
    pub(super) fn extend(&mut self, deadline: Instant) {
        self.deadline = self.deadline.max(deadline);
    }

    /// Waits. What the process had written before the deadline is there then.
    pub(super) async fn done(self) {
        let shared = &self.process.shared;
        loop {
            let changed = shared.changed.notified();
            pin!(changed);
            let until = match self.check(&mut shared.lock()) {
                WaitProgress::Done => return,
                WaitProgress::Pending(until) => until,
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(until) => if until >= self.deadline { break },
            }
        }
        self.process.catch_up().await;
    }

    fn check(&self, buffers: &mut OutputBuffers) -> WaitProgress {
        let done = buffers.end_reported
            || match self.wait {
                WaitFor::Exit => false,
                WaitFor::Pattern(_) => match buffers.poll_match() {
                    MatchState::Found => true,
                    MatchState::NotFound => false,
                    MatchState::RetryAt(then) => {
                        return WaitProgress::Pending(then.min(self.deadline));
                    }
                },
                WaitFor::Bytes(count) => buffers.bytes - self.from >= *count as u64,
                WaitFor::Idle(pause) => {
                    let last = buffers.last_output.filter(|_| buffers.bytes > self.from);
                    // A pause too long to be represented never comes.
                    match last.and_then(|last| last.checked_add(*pause)) {
                        None => false,
                        Some(until) if until > Instant::now() => {
                            return WaitProgress::Pending(until.min(self.deadline));
                        }
                        Some(_) => true,
                    }
                }
            };
        if done {
            WaitProgress::Done
        } else {
            WaitProgress::Pending(self.deadline)
        }
    }
}

impl Drop for OutputWait<'_> {
    fn drop(&mut self) {
        self.process.shared.lock().stop_matching();
    }
}

/// Whether what is waited for has come.
enum WaitProgress {
    Done,
    /// No; it need not be looked at before then, unless something changes.
    Pending(Instant),
}

/// Text that a pattern is looked for in once more when something follows. A match that begins earlier
/// was found before, or spans more than this.
const MAX_MATCH_BYTES: usize = 16 << 10;
/// What is kept before that, so that a word or a line does not seem to begin there: a character.
const CONTEXT_BYTES: usize = 4;
/// Text that may wait for a look. More of it is looked at at once, and then forgotten.
const MAX_UNSEARCHED_BYTES: usize = 256 << 10;
/// Shortest time between two looks: nobody notices it.
const MIN_SEARCH_INTERVAL: Duration = Duration::from_millis(5);
/// Longest time between two looks.
const MAX_SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// How much longer than a look took the next one waits.
const SEARCH_BACKOFF_FACTOR: u32 = 4;

/// A pattern that is looked for.
#[derive(Debug)]
pub(super) struct PatternMatcher {
    regex: Regex,
    /// The last settled text that it may match.
    text: Vec<u8>,
    /// Where in it a match may begin.
    from: usize,
    /// Something came since the last look.
    has_unsearched: bool,
    not_before: Option<Instant>,
    matched: bool,
}

/// What is known of a pattern.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MatchState {
    Found,
    /// Not in what came so far.
    NotFound,
    /// It was not looked for in what came last, and will be then.
    RetryAt(Instant),
}

/// Where text begins that a pattern may match.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TextStart {
    /// With its first byte.
    AtStart,
    /// There was something before it.
    MidStream,
}

impl PatternMatcher {
    /// Begins to look, in this text first.
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

    /// Looks in text that is not kept.
    pub(super) fn search_once(&mut self, text: &[u8]) {
        self.matched |= self.regex.is_match(text);
    }

    /// Takes text that is settled.
    pub(super) fn push(&mut self, text: &[u8]) {
        if !self.matched {
            self.text.extend_from_slice(text);
        }
    }

    /// Takes note that something came. `line` is what there is of the last line.
    pub(super) fn handle_output(&mut self, line: &[u8]) {
        self.has_unsearched = true;
        if self.text.len() > MAX_UNSEARCHED_BYTES {
            self.search(line);
        }
    }

    /// Looks, if it is time. `line` is what there is of the last line.
    pub(super) fn poll_match(&mut self, line: &[u8]) -> MatchState {
        if self.has_unsearched && !self.matched {
            match self.not_before {
                Some(then) if then > Instant::now() => return MatchState::RetryAt(then),
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
        let began = Instant::now();
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
        let pause = (began.elapsed() * SEARCH_BACKOFF_FACTOR)
            .clamp(MIN_SEARCH_INTERVAL, MAX_SEARCH_INTERVAL);
        self.not_before = Some(Instant::now() + pause);
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
        let then = Instant::now() + MIN_SEARCH_INTERVAL;
        assert_eq!(pattern.poll_match(b"tw"), MatchState::RetryAt(then));
        pattern.handle_output(b"two");
        assert_eq!(pattern.poll_match(b"two"), MatchState::RetryAt(then));
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
