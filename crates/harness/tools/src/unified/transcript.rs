//! Fitting output into a budget of tokens.
//!
//! A token is taken to be four bytes: close to what models count for text and code, the same for every
//! model, and free to compute. The budget is for the output; the line that says what was left out comes on top.

#[cfg(test)]
mod tests;

use std::time::Duration;

use exec_core::log::Exit;
use exec_env::process::{Ends, ProcessError, ProcessNumber};

/// Bytes that count as a token.
const TOKEN_BYTES: usize = 4;

impl Transcript {
    /// Shows what fits of `ends`: half of the budget from the beginning, half from the end, cut between
    /// lines where that does not cost more than half of a side. What is not UTF-8 is replaced.
    pub(super) fn truncated(ends: Ends, tokens: usize) -> Self {
        let budget = tokens.saturating_mul(TOKEN_BYTES);
        let Ends {
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
        // Without a gap the end follows the beginning in the same text.
        let rest = if omitted == 0 {
            &head[first.len()..]
        } else {
            &tail
        };
        let last = tail_within(rest, budget - budget / 2);
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

/// Returns what fits of the beginning of `text`.
fn head_within(text: &str, budget: usize) -> &str {
    let cut = &text[..text.floor_char_boundary(budget)];
    match cut.rfind('\n') {
        Some(line) if line >= cut.len() / 2 => &cut[..=line],
        _ => cut,
    }
}

/// Returns what fits of the end of `text`.
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

/// Returns how many bytes at the end begin a character that is not all there.
pub(super) fn incomplete_end(bytes: &[u8]) -> usize {
    let is_begun = |from: &usize| {
        let error = std::str::from_utf8(&bytes[*from..]).err();
        error.is_some_and(|error| error.error_len().is_none() && error.valid_up_to() == 0)
    };
    let from = (bytes.len().saturating_sub(3)..bytes.len()).find(is_begun);
    from.map_or(0, |from| bytes.len() - from)
}

/// Returns how many bytes at the start end a character that began before.
fn orphaned_start(bytes: &[u8]) -> usize {
    let is_continuation = |byte: &&u8| **byte & 0xc0 == 0x80;
    bytes.iter().take(3).take_while(is_continuation).count()
}

/// What one call of a tool comes to.
#[derive(Clone, Debug)]
pub struct ToolOutput {
    /// How long the call took.
    pub wall_time: Duration,
    /// What was said since the last call, bounded.
    pub transcript: Transcript,
    /// The process, if it runs on.
    pub running: Option<ProcessNumber>,
    /// How it ended, if it did.
    pub exit: Option<Exit>,
    /// Why nothing more can be known of it, if so. It neither runs on then nor did it end, as far as is
    /// known.
    pub failure: Option<ProcessError>,
}

/// The beginning and the end of some output, within a budget of tokens.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Transcript {
    /// What is shown, with a line in the place of what is left out.
    pub text: String,
    /// How many tokens all of it would have been.
    pub original_tokens: usize,
    /// Bytes that were left out.
    pub omitted_bytes: u64,
}
