//! Truncates output to a token budget.
//!
//! A token counts as four bytes: close to what models count for text and code, the same for every
//! model, and free to compute. The budget excludes the omission marker.

#[cfg(test)]
mod tests;

use std::time::Duration;

use exec_core::output_log::ExitInfo;
use exec_env::process::{HeadTailParts, ProcessError, ProcessNumber};

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
pub(super) fn incomplete_end(bytes: &[u8]) -> usize {
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

/// Result of a call.
#[derive(Clone, Debug)]
pub struct ToolOutput {
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
