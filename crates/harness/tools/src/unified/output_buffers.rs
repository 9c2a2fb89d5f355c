//! Output of a command that no call has shown yet, in each format that a call can request, and its
//! truncation to a token budget.
//!
//! Invariant: taken output was not shown before, and output that is not taken stays.
//!
//! A token counts as four bytes: close to what models count for text and code, the same for every
//! model, and free to compute. The budget of a [`Transcript`] excludes the omission marker.
//!
//! Elsewhere: following the process ([`process`](super::process)) and waiting
//! ([`wait`](super::wait)).

#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime};

use exec_core::output_log::{ExitInfo, OutputChunk};
use exec_env::process::{HeadTailBuffer, HeadTailParts, ProcessError};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    process::{OutputStream, TerminalSize},
};
use regex::bytes::Regex;
use tokio::time::Instant;

use super::{
    call::OutputView,
    command_table::ProcessNumber,
    plain_text::PlainText,
    process::WatchedState,
    screen::TerminalScreen,
    wait::{MatchState, PatternMatcher, TextStart},
};

/// Number of bytes that are searched for the last line.
const LAST_LINE_BYTES: usize = 4 << 10;
/// Maximum length of the last line in bytes: it is shown beside a progress bar.
const MAX_LAST_LINE: usize = 200;

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
    complete: HeadTailBuffer,
    /// Sequence number of the last event.
    pub(super) last_seq: OutputSeq,
    /// Bytes since the start.
    pub(super) bytes: u64,
    /// Number of bytes seen by the last call.
    pub(super) shown: u64,
    /// Time of the last output.
    pub(super) last_output: Option<Instant>,
    pattern: Option<PatternMatcher>,
    /// Exit of the command.
    pub(super) exit: Option<ExitInfo>,
    /// Why the state of the command is unknown.
    pub(super) failure: Option<ProcessError>,
    /// State of the command. The exit is in it before the output is complete.
    pub(super) state: WatchedState,
    /// All output was received; the end event follows.
    pub(super) finished: bool,
    /// The end event was sent.
    pub(super) end_reported: bool,
    /// When it was sent.
    pub(super) ended: Option<SystemTime>,
}

/// Output that a pattern may match.
#[derive(Clone, Copy, Debug)]
pub(super) enum MatchScope {
    /// Output that no call has shown.
    LastCall,
    /// Future output only.
    Now,
}

impl OutputBuffers {
    pub(super) fn new(retained_bytes: usize, terminal_size: Option<TerminalSize>) -> Self {
        Self {
            raw: HeadTailBuffer::new(retained_bytes),
            text: HeadTailBuffer::new(retained_bytes),
            plain: PlainText::default(),
            screen: terminal_size.map(TerminalScreen::new),
            complete: HeadTailBuffer::new(retained_bytes),
            last_seq: OutputSeq(0),
            bytes: 0,
            shown: 0,
            last_output: None,
            pattern: None,
            exit: None,
            failure: None,
            state: WatchedState::default(),
            finished: false,
            end_reported: false,
            ended: None,
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
        self.settle(PlainText::finish);
        self.complete_parts()
    }

    /// Returns all retained output, shown or not, within a token budget.
    pub(super) fn whole(&self, view: OutputView, tokens: usize) -> Transcript {
        let parts = self.complete_parts();
        let shown = match view {
            OutputView::Raw => parts,
            OutputView::Plain => HeadTailParts {
                head: to_plain(&parts.head),
                tail: to_plain(&parts.tail),
                omitted: parts.omitted,
            },
            OutputView::Screen => self.render_screen(0),
        };
        Transcript::truncated(shown, tokens)
    }

    fn complete_parts(&self) -> HeadTailParts {
        let (head, omitted) = (self.complete.first().to_vec(), self.complete.omitted());
        let mut tail = self.complete.last(usize::MAX);
        if omitted == 0 {
            tail.drain(..head.len());
        }
        HeadTailParts {
            head,
            tail,
            omitted,
        }
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
                self.settle(PlainText::settle);
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
    pub(super) fn take(&mut self, view: OutputView, tokens: usize) -> Transcript {
        self.settle(PlainText::settle);
        let (text, mut raw) = (self.text.take(), self.raw.take());
        if !self.end_reported {
            let end = if raw.tail.is_empty() {
                &mut raw.head
            } else {
                &mut raw.tail
            };
            let incomplete = end.split_off(end.len() - incomplete_end(end));
            self.raw.push(&incomplete);
        }
        let scrolled = self
            .screen
            .as_mut()
            .map_or(0, TerminalScreen::take_scrolled);
        self.shown = self.bytes;
        let shown = match view {
            OutputView::Plain => text,
            OutputView::Raw => raw,
            OutputView::Screen => self.render_screen(scrolled),
        };
        Transcript::truncated(shown, tokens)
    }

    /// Renders the screen, if there is one, with a note about scrolled lines.
    fn render_screen(&self, scrolled: u64) -> HeadTailParts {
        let screen = self.screen.as_ref().map(TerminalScreen::render);
        let mut text = screen.unwrap_or_default();
        if scrolled > 0 {
            text = format!(
                "[{scrolled} lines have scrolled off the screen since the last call and are not shown]\n{text}"
            );
        }
        HeadTailParts {
            head: text.into_bytes(),
            ..HeadTailParts::default()
        }
    }

    /// Returns the last line that is not blank.
    pub(super) fn last_line(&self) -> Option<String> {
        let text = to_plain(&self.complete.last(LAST_LINE_BYTES));
        let mut lines = text.rsplit(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let line = lines.find(|line| !line.is_empty())?;
        let line = String::from_utf8_lossy(line);
        Some(line[..line.floor_char_boundary(MAX_LAST_LINE)].to_owned())
    }

    fn append(&mut self, stream: OutputStream, data: &[u8]) {
        self.raw.push(data);
        self.complete.push(data);
        if let Some(screen) = &mut self.screen {
            screen.feed(data);
        }
        let mut settled = Vec::with_capacity(data.len());
        self.plain.feed(stream, data, &mut settled);
        self.push_settled(&settled);
    }

    /// Adds the text that `settle` settles.
    fn settle(&mut self, settle: impl FnOnce(&mut PlainText, &mut Vec<u8>)) {
        let mut settled = Vec::new();
        settle(&mut self.plain, &mut settled);
        self.push_settled(&settled);
    }

    fn push_settled(&mut self, text: &[u8]) {
        self.text.push(text);
        if let Some(pattern) = &mut self.pattern {
            pattern.push(text);
        }
    }
}

/// Removes escape codes.
fn to_plain(raw: &[u8]) -> Vec<u8> {
    let (mut plain, mut text) = (PlainText::default(), Vec::new());
    plain.feed(OutputStream::Stdout, raw, &mut text);
    plain.finish(&mut text);
    text
}

/// Result of a call.
#[derive(Clone, Debug)]
pub struct ToolOutput {
    /// Process id of the command.
    pub process_id: ProcessId,
    /// Duration of the call.
    pub wall_time: Duration,
    /// Truncated output since the last call.
    pub transcript: Transcript,
    /// Number of the command, if it is running.
    pub running: Option<ProcessNumber>,
    /// Exit, if it ended.
    pub exit: Option<ExitInfo>,
    /// Why its state is unknown, if so. It may or may not be running.
    pub failure: Option<ProcessError>,
}

/// Head and tail of output within a token budget.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Transcript {
    /// The text, with a marker for omitted output.
    pub text: String,
    /// Number of tokens before truncation.
    pub original_tokens: usize,
    /// Number of omitted bytes.
    pub omitted_bytes: u64,
}

/// Bytes per token.
const TOKEN_BYTES: usize = 4;

impl Transcript {
    /// Truncates output: half of the budget from the head, half from the tail, at line boundaries
    /// where that costs at most half of a side. Replaces invalid UTF-8.
    pub(super) fn truncated(ends: HeadTailParts, tokens: usize) -> Self {
        let budget = tokens.saturating_mul(TOKEN_BYTES);
        let HeadTailParts {
            mut head,
            mut tail,
            mut omitted,
        } = ends;
        if omitted == 0 {
            head.append(&mut tail);
        } else {
            let (ends, starts) = (incomplete_end(&head), orphaned_start(&tail));
            head.truncate(head.len() - ends);
            tail.drain(..starts);
            omitted += (ends + starts) as u64;
        }
        let (head, tail) = (to_lossy_string(head), to_lossy_string(tail));
        let total = (head.len() + tail.len()) as u64 + omitted;
        let original_tokens = usize::try_from(total.div_ceil(TOKEN_BYTES as u64));
        let original_tokens = original_tokens.unwrap_or(usize::MAX);
        if total <= budget as u64 && omitted == 0 {
            return Self {
                text: head,
                original_tokens,
                omitted_bytes: 0,
            };
        }
        let first = head_within(&head, budget / 2);
        // Without a gap, the tail follows the head in the same text.
        let tail = if omitted == 0 {
            &head[first.len()..]
        } else {
            &tail
        };
        let last = tail_within(tail, budget - budget / 2);
        let omitted_bytes = total - (first.len() + last.len()) as u64;
        let marker = marker(omitted_bytes);
        let newline = if first.is_empty() || first.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        Self {
            text: [first, newline, &marker, last].concat(),
            original_tokens,
            omitted_bytes,
        }
    }
}

fn marker(omitted_bytes: u64) -> String {
    let tokens = omitted_bytes.div_ceil(TOKEN_BYTES as u64);
    format!("[... {tokens} tokens ({omitted_bytes} bytes) left out ...]\n")
}

/// Returns the head of `text` within a budget.
fn head_within(text: &str, budget: usize) -> &str {
    let cut = &text[..text.floor_char_boundary(budget)];
    match cut.rfind('\n') {
        Some(line) if line >= cut.len() / 2 => &cut[..=line],
        _ => cut,
    }
}

/// Returns the tail of `text` within a budget.
fn tail_within(text: &str, budget: usize) -> &str {
    let from = text.ceil_char_boundary(text.len().saturating_sub(budget));
    let cut = &text[from..];
    let begins_a_line = from == 0 || text.as_bytes()[from - 1] == b'\n';
    match cut.find('\n') {
        Some(line) if !begins_a_line && line <= cut.len() / 2 => &cut[line + 1..],
        _ => cut,
    }
}

fn to_lossy_string(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Returns the number of trailing bytes that start an incomplete character.
fn incomplete_end(bytes: &[u8]) -> usize {
    let is_begun = |from: &usize| {
        let error = std::str::from_utf8(&bytes[*from..]).err();
        error.is_some_and(|error| error.error_len().is_none() && error.valid_up_to() == 0)
    };
    let from = (bytes.len().saturating_sub(3)..bytes.len()).find(is_begun);
    from.map_or(0, |from| bytes.len() - from)
}

/// Returns the number of leading bytes that continue an earlier character.
fn orphaned_start(bytes: &[u8]) -> usize {
    let is_continuation = |byte: &&u8| **byte & 0xc0 == 0x80;
    bytes.iter().take(3).take_while(is_continuation).count()
}
