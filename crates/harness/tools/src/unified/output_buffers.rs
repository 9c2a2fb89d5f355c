//! What a command has written and no call has shown yet, in each way that a call can ask for.
//!
//! Invariant: what is taken was not shown before, and what is not taken stays. What the last call took can
//! be put back until the next one takes, for an answer that nobody received. Not here: following the process
//! (`watcher`), waiting (`wait`).

use exec_core::log::{Exit, OutputChunk};
use exec_env::process::{Ends, HeadTailBuffer, ProcessError};
use exec_wire::{
    id::OutputSeq,
    process::{OutputStream, TerminalSize},
};
use regex::bytes::Regex;
use tokio::time::Instant;

use super::{
    call::{CallId, View},
    plain_text::PlainText,
    screen::Screen,
    transcript::{Transcript, incomplete_end},
    wait::{MatchState, PatternMatcher, TextStart},
};

/// What was gathered of a command.
#[derive(Debug)]
pub(super) struct OutputBuffers {
    /// As it was written, since the last call.
    raw: HeadTailBuffer,
    /// As text, since the last call; the last line is in `plain`.
    text: HeadTailBuffer,
    plain: PlainText,
    screen: Option<Screen>,
    /// As it was written, from the start on.
    whole: HeadTailBuffer,
    /// The number of the last event.
    pub(super) last_seq: OutputSeq,
    /// Bytes from the start on.
    pub(super) bytes: u64,
    /// How many of them the last call had seen.
    pub(super) shown: u64,
    /// When the last of them came.
    pub(super) last_output: Option<Instant>,
    pattern: Option<PatternMatcher>,
    /// What the last call took.
    taken: Option<TakenOutput>,
    /// How it ended.
    pub(super) exit: Option<Exit>,
    /// Why nothing more will be known.
    pub(super) failure: Option<ProcessError>,
    /// All output was taken; the end is about to be told.
    pub(super) finished: bool,
    /// Nothing follows: the end was told.
    pub(super) end_reported: bool,
}

/// What a call took.
#[derive(Debug)]
struct TakenOutput {
    by: CallId,
    text: Ends,
    raw: Ends,
    /// How many bytes the call before it had seen.
    shown: u64,
    /// Lines that had left the screen.
    scrolled: u64,
}

/// Which output a pattern may match.
#[derive(Clone, Copy, Debug)]
pub(super) enum MatchScope {
    /// What no call has shown.
    LastCall,
    /// What comes from now on.
    Now,
}

/// Whether something was put back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RestoreOutcome {
    /// The next call takes it.
    Restored,
    /// Another call took something since, or the call took nothing here.
    NotOwned,
}

impl OutputBuffers {
    pub(super) fn new(retained_bytes: usize, terminal_size: Option<TerminalSize>) -> Self {
        Self {
            raw: HeadTailBuffer::new(retained_bytes),
            text: HeadTailBuffer::new(retained_bytes),
            plain: PlainText::default(),
            screen: terminal_size.map(Screen::new),
            whole: HeadTailBuffer::new(retained_bytes),
            last_seq: OutputSeq(0),
            bytes: 0,
            shown: 0,
            last_output: None,
            pattern: None,
            taken: None,
            exit: None,
            failure: None,
            finished: false,
            end_reported: false,
        }
    }

    /// Takes output of the process.
    pub(super) fn push(&mut self, chunk: &OutputChunk) {
        let lost = chunk.seq.0.saturating_sub(self.last_seq.next().0);
        self.last_seq = chunk.seq;
        if lost > 0 {
            let note = format!("\n[... {lost} pieces of output were lost on the way ...]\n");
            self.append(chunk.stream, note.as_bytes());
        }
        self.append(chunk.stream, &chunk.data);
        self.bytes += chunk.data.len() as u64;
        self.last_output = Some(Instant::now());
        if let Some(pattern) = &mut self.pattern {
            pattern.handle_output(self.plain.line());
        }
    }

    /// Takes note that nothing follows. Returns all that was written, as far as it is kept.
    pub(super) fn finish(&mut self) -> Ends {
        self.finished = true;
        let mut settled = Vec::new();
        self.plain.finish(&mut settled);
        self.push_settled(&settled);
        self.whole.take()
    }

    /// Begins to look for a pattern.
    pub(super) fn start_matching(&mut self, regex: Regex, since: MatchScope) {
        self.pattern = Some(match since {
            MatchScope::LastCall if self.text.omitted() > 0 => {
                // The call shows both ends of what came.
                let last = self.text.last(usize::MAX);
                let mut pattern = PatternMatcher::new(regex, last, TextStart::MidStream);
                pattern.search_once(self.text.first());
                pattern
            }
            MatchScope::LastCall => {
                let mut pattern =
                    PatternMatcher::new(regex, self.text.last(usize::MAX), TextStart::AtStart);
                if !self.plain.line().is_empty() {
                    pattern.handle_output(self.plain.line());
                }
                pattern
            }
            MatchScope::Now => {
                // The line so far is not to match, so it may not be part of what comes.
                let mut settled = Vec::new();
                self.plain.settle(&mut settled);
                self.push_settled(&settled);
                PatternMatcher::new(regex, Vec::new(), TextStart::AtStart)
            }
        });
    }

    /// Stops looking for a pattern.
    pub(super) fn stop_matching(&mut self) {
        self.pattern = None;
    }

    /// Looks for the pattern, if it is time.
    pub(super) fn poll_match(&mut self) -> MatchState {
        match &mut self.pattern {
            Some(pattern) => pattern.poll_match(self.plain.line()),
            None => MatchState::NotFound,
        }
    }

    /// Returns what no call has shown, and counts it as shown by this one.
    pub(super) fn take(&mut self, by: &CallId, view: View, tokens: usize) -> Transcript {
        let mut settled = Vec::new();
        self.plain.settle(&mut settled);
        self.push_settled(&settled);
        let (text, mut raw) = (self.text.take(), self.raw.take());
        if !self.end_reported {
            let end = if raw.tail.is_empty() {
                &mut raw.head
            } else {
                &mut raw.tail
            };
            let begun = end.split_off(end.len() - incomplete_end(end));
            self.raw.push(&begun);
        }
        let scrolled = self.screen.as_mut().map_or(0, Screen::take_scrolled);
        self.taken = Some(TakenOutput {
            scrolled,
            by: by.clone(),
            text: text.clone(),
            raw: raw.clone(),
            shown: std::mem::replace(&mut self.shown, self.bytes),
        });
        let shown = match (view, &self.screen) {
            (View::Plain, _) => text,
            (View::Raw, _) => raw,
            (View::Screen, screen) => Ends {
                head: screen
                    .as_ref()
                    .map(|screen| render_screen(screen, scrolled))
                    .unwrap_or_default()
                    .into_bytes(),
                ..Ends::default()
            },
        };
        Transcript::truncated(shown, tokens)
    }

    /// Puts back what this call took, if it was the last to take something.
    pub(super) fn restore(&mut self, by: &CallId) -> RestoreOutcome {
        let Some(taken) = self.taken.take_if(|taken| taken.by == *by) else {
            return RestoreOutcome::NotOwned;
        };
        prepend(&mut self.text, &taken.text);
        prepend(&mut self.raw, &taken.raw);
        self.shown = taken.shown;
        if let Some(screen) = &mut self.screen {
            screen.restore_scrolled(taken.scrolled);
        }
        RestoreOutcome::Restored
    }

    fn append(&mut self, stream: OutputStream, data: &[u8]) {
        self.raw.push(data);
        self.whole.push(data);
        if let Some(screen) = &mut self.screen {
            screen.feed(data);
        }
        let mut settled = Vec::with_capacity(data.len());
        self.plain.feed(stream, data, &mut settled);
        self.push_settled(&settled);
    }

    fn push_settled(&mut self, text: &[u8]) {
        self.text.push(text);
        if let Some(pattern) = &mut self.pattern {
            pattern.push(text);
        }
    }
}

/// What a screen shows, and what it does not.
fn render_screen(screen: &Screen, scrolled: u64) -> String {
    match scrolled {
        0 => screen.render(),
        lines => format!(
            "[{lines} lines have scrolled off the screen since the last call and are not shown]\n{}",
            screen.render()
        ),
    }
}

/// Puts some output in front of what a buffer holds.
fn prepend(buffer: &mut HeadTailBuffer, before: &Ends) {
    let behind = buffer.take();
    for ends in [before, &behind] {
        buffer.push(&ends.head);
        if ends.omitted > 0 {
            let note = format!("\n[... {} bytes left out ...]\n", ends.omitted);
            buffer.push(note.as_bytes());
        }
        buffer.push(&ends.tail);
    }
}
