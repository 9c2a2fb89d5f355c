//! Output of a command that no call has shown yet, in each format that a call can request.
//!
//! Invariant: taken output was not shown before, and output that is not taken stays. The output
//! taken by the last call can be restored until the next one, if the answer was not delivered.
//! Elsewhere: following the process ([`process`](super::process)) and waiting
//! ([`wait`](super::wait)).

use exec_core::output_log::{ExitInfo, OutputChunk};
use exec_env::process::{HeadTailBuffer, HeadTailParts, ProcessError};
use exec_wire::{
    id::OutputSeq,
    process::{OutputStream, TerminalSize},
};
use regex::bytes::Regex;
use tokio::time::Instant;

use super::{
    call::{CallId, OutputView},
    plain_text::PlainText,
    screen::TerminalScreen,
    transcript::{Transcript, incomplete_end},
    wait::{MatchState, PatternMatcher, TextStart},
};

/// Buffered output and state of a command.
#[derive(Debug)]
pub(super) struct OutputBuffers {
    /// Raw output since the last call.
    raw: HeadTailBuffer,
    /// Text output since the last call; the last line is in `plain`.
    text: HeadTailBuffer,
    plain: PlainText,
    screen: Option<TerminalScreen>,
    /// Raw output since the start.
    whole: HeadTailBuffer,
    /// Sequence number of the last event.
    pub(super) last_seq: OutputSeq,
    /// Bytes since the start.
    pub(super) bytes: u64,
    /// Number of bytes seen by the last call.
    pub(super) shown: u64,
    /// Time of the last output.
    pub(super) last_output: Option<Instant>,
    pattern: Option<PatternMatcher>,
    /// Output taken by the last call.
    taken: Option<TakenOutput>,
    /// Exit of the command.
    pub(super) exit: Option<ExitInfo>,
    /// Why the state of the command is unknown.
    pub(super) failure: Option<ProcessError>,
    /// All output was received; the end event follows.
    pub(super) finished: bool,
    /// The end event was sent.
    pub(super) end_reported: bool,
}

/// Output taken by a call.
#[derive(Debug)]
struct TakenOutput {
    by: CallId,
    text: HeadTailParts,
    raw: HeadTailParts,
    /// Number of bytes seen by the previous call.
    shown: u64,
    /// Lines that had scrolled off the screen.
    scrolled: u64,
}

/// Output that a pattern may match.
#[derive(Clone, Copy, Debug)]
pub(super) enum MatchScope {
    /// Output that no call has shown.
    LastCall,
    /// Future output only.
    Now,
}

/// Result of restoring output.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RestoreOutcome {
    /// The next call takes it.
    Restored,
    /// Another call took output since, or the call took none here.
    NotOwned,
}

impl OutputBuffers {
    pub(super) fn new(retained_bytes: usize, terminal_size: Option<TerminalSize>) -> Self {
        Self {
            raw: HeadTailBuffer::new(retained_bytes),
            text: HeadTailBuffer::new(retained_bytes),
            plain: PlainText::default(),
            screen: terminal_size.map(TerminalScreen::new),
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

    /// Adds output of the process.
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

    /// Marks the output as complete. Returns all retained output.
    pub(super) fn finish(&mut self) -> HeadTailParts {
        self.finished = true;
        let mut settled = Vec::new();
        self.plain.finish(&mut settled);
        self.push_settled(&settled);
        self.whole.take()
    }

    /// Starts searching for a pattern.
    pub(super) fn start_matching(&mut self, regex: Regex, since: MatchScope) {
        self.pattern = Some(match since {
            MatchScope::LastCall if self.text.omitted() > 0 => {
                // The call shows both ends of the output, so search both.
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
                // The current line must not match, so it is settled first.
                let mut settled = Vec::new();
                self.plain.settle(&mut settled);
                self.push_settled(&settled);
                PatternMatcher::new(regex, Vec::new(), TextStart::AtStart)
            }
        });
    }

    /// Stops searching for a pattern.
    pub(super) fn stop_matching(&mut self) {
        self.pattern = None;
    }

    /// Searches for the pattern, if it is time.
    pub(super) fn poll_match(&mut self) -> MatchState {
        match &mut self.pattern {
            Some(pattern) => pattern.poll_match(self.plain.line()),
            None => MatchState::NotFound,
        }
    }

    /// Takes the output that no call has shown.
    pub(super) fn take(&mut self, by: &CallId, view: OutputView, tokens: usize) -> Transcript {
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
        let scrolled = self
            .screen
            .as_mut()
            .map_or(0, TerminalScreen::take_scrolled);
        self.taken = Some(TakenOutput {
            scrolled,
            by: by.clone(),
            text: text.clone(),
            raw: raw.clone(),
            shown: std::mem::replace(&mut self.shown, self.bytes),
        });
        let shown = match (view, &self.screen) {
            (OutputView::Plain, _) => text,
            (OutputView::Raw, _) => raw,
            (OutputView::Screen, screen) => HeadTailParts {
                head: screen
                    .as_ref()
                    .map(|screen| render_screen(screen, scrolled))
                    .unwrap_or_default()
                    .into_bytes(),
                ..HeadTailParts::default()
            },
        };
        Transcript::truncated(shown, tokens)
    }

    /// Restores the output taken by this call, if it was the last to take any.
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

/// Renders a screen with a note about scrolled lines.
fn render_screen(screen: &TerminalScreen, scrolled: u64) -> String {
    match scrolled {
        0 => screen.render(),
        lines => format!(
            "[{lines} lines have scrolled off the screen since the last call and are not shown]\n{}",
            screen.render()
        ),
    }
}

/// Prepends output to a buffer.
fn prepend(buffer: &mut HeadTailBuffer, before: &HeadTailParts) {
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
