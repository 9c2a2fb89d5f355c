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
    output_buffers::{Gathered, Since},
    process::UnifiedExecProcess,
};

/// A wait that has begun.
#[derive(Debug)]
pub(super) struct Wait<'a> {
    process: &'a UnifiedExecProcess,
    wait: &'a WaitFor,
    /// Output up to here does not count.
    from: u64,
    deadline: Instant,
}

impl<'a> Wait<'a> {
    /// Begins to wait. What is written from now on counts.
    pub(super) fn begin(
        process: &'a UnifiedExecProcess,
        wait: &'a WaitFor,
        since: Since,
        deadline: Instant,
    ) -> Self {
        let mut gathered = process.shared.lock();
        if let WaitFor::Pattern(regex) = wait {
            gathered.watch_for(regex.clone(), since);
        }
        let from = match since {
            Since::LastCall => gathered.shown,
            Since::Now => gathered.bytes,
        };
        drop(gathered);
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
            let until = match self.look(&mut shared.lock()) {
                Found::Done => return,
                Found::NotYet(until) => until,
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(until) => if until >= self.deadline { break },
            }
        }
        self.process.catch_up().await;
    }

    fn look(&self, gathered: &mut Gathered) -> Found {
        let done = gathered.over
            || match self.wait {
                WaitFor::Exit => false,
                WaitFor::Pattern(_) => match gathered.sought() {
                    Sought::Found => true,
                    Sought::NotYet => false,
                    Sought::LookAt(then) => return Found::NotYet(then.min(self.deadline)),
                },
                WaitFor::Bytes(count) => gathered.bytes - self.from >= *count as u64,
                WaitFor::Idle(pause) => {
                    let last = gathered.last_output.filter(|_| gathered.bytes > self.from);
                    // A pause too long to be represented never comes.
                    match last.and_then(|last| last.checked_add(*pause)) {
                        None => false,
                        Some(until) if until > Instant::now() => {
                            return Found::NotYet(until.min(self.deadline));
                        }
                        Some(_) => true,
                    }
                }
            };
        if done {
            Found::Done
        } else {
            Found::NotYet(self.deadline)
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.process.shared.lock().stop_watching();
    }
}

/// Whether what is waited for has come.
enum Found {
    Done,
    /// No; it need not be looked at before then, unless something changes.
    NotYet(Instant),
}

/// Text that a pattern is looked for in once more when something follows. A match that begins earlier
/// was found before, or spans more than this.
const MATCHED_BYTES: usize = 16 << 10;
/// What is kept before that, so that a word or a line does not seem to begin there: a character.
const CONTEXT_BYTES: usize = 4;
/// Text that may wait for a look. More of it is looked at at once, and then forgotten.
const UNSEEN_BYTES: usize = 256 << 10;
/// Shortest time between two looks: nobody notices it.
const PAUSE: Duration = Duration::from_millis(5);
/// Longest time between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How much longer than a look took the next one waits.
const PAUSES: u32 = 4;

/// A pattern that is looked for.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    /// The last settled text that it may match.
    text: Vec<u8>,
    /// Where in it a match may begin.
    from: usize,
    /// Something came since the last look.
    unseen: bool,
    not_before: Option<Instant>,
    matched: bool,
}

/// What is known of a pattern.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sought {
    Found,
    /// Not in what came so far.
    NotYet,
    /// It was not looked for in what came last, and will be then.
    LookAt(Instant),
}

/// Where text begins that a pattern may match.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Begins {
    /// With its first byte.
    Here,
    /// There was something before it.
    Earlier,
}

impl Pattern {
    /// Begins to look, in this text first.
    pub(super) fn new(regex: Regex, text: Vec<u8>, begins: Begins) -> Self {
        Self {
            regex,
            from: match begins {
                Begins::Here => 0,
                Begins::Earlier => CONTEXT_BYTES.min(text.len()),
            },
            unseen: !text.is_empty(),
            text,
            not_before: None,
            matched: false,
        }
    }

    /// Looks in text that is not kept.
    pub(super) fn look_in(&mut self, text: &[u8]) {
        self.matched |= self.regex.is_match(text);
    }

    /// Takes text that is settled.
    pub(super) fn push(&mut self, text: &[u8]) {
        if !self.matched {
            self.text.extend_from_slice(text);
        }
    }

    /// Takes note that something came. `line` is what there is of the last line.
    pub(super) fn changed(&mut self, line: &[u8]) {
        self.unseen = true;
        if self.text.len() > UNSEEN_BYTES {
            self.look(line);
        }
    }

    /// Looks, if it is time. `line` is what there is of the last line.
    pub(super) fn sought(&mut self, line: &[u8]) -> Sought {
        if self.unseen && !self.matched {
            match self.not_before {
                Some(then) if then > Instant::now() => return Sought::LookAt(then),
                Some(_) | None => self.look(line),
            }
        }
        if self.matched {
            Sought::Found
        } else {
            Sought::NotYet
        }
    }

    fn look(&mut self, line: &[u8]) {
        if self.matched {
            return;
        }
        let began = Instant::now();
        let settled = self.text.len();
        self.text.extend_from_slice(line);
        self.matched = self.regex.is_match_at(&self.text, self.from);
        self.text.truncate(settled);
        let excess = settled.saturating_sub(MATCHED_BYTES + CONTEXT_BYTES);
        if excess > 0 {
            self.text.drain(..excess);
            self.from = CONTEXT_BYTES;
        }
        self.unseen = false;
        let pause = (began.elapsed() * PAUSES).clamp(PAUSE, LONGEST_PAUSE);
        self.not_before = Some(Instant::now() + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::new(Regex::new(text).unwrap(), Vec::new(), Begins::Here)
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_soon_after_a_look_is_looked_at_a_little_later() {
        let mut pattern = pattern("two");
        pattern.push(b"one\n");
        pattern.changed(b"");
        assert_eq!(pattern.sought(b""), Sought::NotYet);
        pattern.changed(b"tw");
        let then = Instant::now() + PAUSE;
        assert_eq!(pattern.sought(b"tw"), Sought::LookAt(then));
        pattern.changed(b"two");
        assert_eq!(pattern.sought(b"two"), Sought::LookAt(then));
        tokio::time::advance(PAUSE).await;
        assert_eq!(pattern.sought(b"two"), Sought::Found);
    }

    #[tokio::test(start_paused = true)]
    async fn text_that_waits_for_a_look_is_bounded_and_not_missed() {
        let mut pattern = pattern("needle");
        pattern.push(b"hay\n");
        pattern.changed(b"");
        assert_eq!(pattern.sought(b""), Sought::NotYet);
        pattern.push(b"needle\n");
        for _ in 0..1000 {
            pattern.push(&[b'x'; 1024]);
            pattern.changed(b"");
            assert!(pattern.text.len() <= UNSEEN_BYTES + 1024);
        }
        assert_eq!(pattern.sought(b""), Sought::Found);
    }
}
