//! Results of tools: an answer or an error, truncated to the message size that clients accept.
//!
//! The official Python client rejects events above 1 MiB over HTTP. The limit applies to the JSON
//! encoding, in which a control character takes six bytes.

use std::borrow::Cow;

use exec_env::filesystem::FileError;
use exec_wire::base64_bytes::encode_append;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;
use serde_json::Value;

use super::{patch::PatchParseError, typed_path::TypedPathError};
use crate::unified::ExecCommandError;

/// Successful result of a tool.
#[derive(Clone, Debug)]
pub(super) struct ToolAnswer {
    content: ContentBlock,
    structured: Option<Value>,
}

impl ToolAnswer {
    /// Makes a text answer. The middle of oversized text is left out.
    pub(super) fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            content: ContentBlock::text(truncate_json(&text, MAX_ANSWER_BYTES)),
            structured: None,
        }
    }

    /// Makes an image answer.
    pub(super) fn image(data: &[u8], kind: &'static str) -> Self {
        let mut text = Vec::new();
        encode_append(data, &mut text);
        Self {
            content: ContentBlock::image(String::from_utf8_lossy(&text), kind),
            structured: None,
        }
    }

    /// Adds structured output. Text and structured output together must not exceed the limit.
    #[must_use]
    pub(super) fn with(mut self, structured: &impl Serialize) -> Self {
        self.structured = serde_json::to_value(structured).ok();
        self
    }

    /// Converts to the MCP result.
    pub(super) fn into_result(self) -> CallToolResult {
        let mut result = CallToolResult::success(vec![self.content]);
        result.structured_content = self.structured;
        result
    }
}

/// Error of a tool, with advice for the agent.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(super) struct ToolError(pub(super) String);

impl ToolError {
    /// Creates an error.
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// Converts to the MCP result.
    pub(super) fn into_result(self) -> CallToolResult {
        let text = truncate_json(&self.0, MAX_ANSWER_BYTES);
        CallToolResult::error(vec![ContentBlock::text(text)])
    }
}

impl From<FileError> for ToolError {
    fn from(error: FileError) -> Self {
        Self(error.to_string())
    }
}

impl From<TypedPathError> for ToolError {
    fn from(error: TypedPathError) -> Self {
        Self(error.to_string())
    }
}

impl From<PatchParseError> for ToolError {
    fn from(error: PatchParseError) -> Self {
        Self(error.to_string())
    }
}

impl From<ExecCommandError> for ToolError {
    fn from(error: ExecCommandError) -> Self {
        Self(error_chain(&error))
    }
}

/// Formats an error with its causes on one line.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Maximum encoded size of an answer. The rest of a message is its envelope.
pub(super) const MAX_ANSWER_BYTES: usize = 960 << 10;

/// Maximum encoded size of the omission marker.
const MARKER_BYTES: usize = 128;

/// Truncates text to an encoded size, keeping its head and tail.
pub(super) fn truncate_json(text: &str, max_bytes: usize) -> Cow<'_, str> {
    let total: usize = text.chars().map(json_len).sum();
    if total <= max_bytes {
        return Cow::Borrowed(text);
    }
    let side = max_bytes.saturating_sub(MARKER_BYTES) / 2;
    let head = prefix_len(text.chars(), side);
    let tail = prefix_len(text.chars().rev(), side);
    let (first, last) = (&text[..head], &text[text.len() - tail..]);
    let omitted = text.len() - head - tail;
    let gap = if first.is_empty() || first.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let marker = format!("[... {omitted} bytes left out: the answer would be too large ...]\n");
    Cow::Owned([first, gap, &marker, last].concat())
}

/// Returns the length of the longest prefix within an encoded size.
fn prefix_len(characters: impl Iterator<Item = char>, max_bytes: usize) -> usize {
    let mut len = 0;
    let fits = characters.take_while(|character| {
        len += json_len(*character);
        len <= max_bytes
    });
    fits.map(char::len_utf8).sum()
}

/// Returns the encoded size of a character in a JSON string.
fn json_len(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => character.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded_len(text: &str) -> usize {
        serde_json::to_string(text).unwrap().len() - 2
    }

    #[test]
    fn truncation_keeps_both_ends_and_counts_the_omission() {
        let text = format!("first\n{}last", "\u{1}".repeat(10_000));
        let cut = truncate_json(&text, 1000);
        assert!(
            cut.starts_with("first\n\u{1}") && cut.ends_with("\u{1}last"),
            "{cut}"
        );
        assert!(cut.contains(" bytes left out"), "{cut}");
        assert!(encoded_len(&cut) <= 1000);
    }

    proptest! {
        #[test]
        fn json_len_matches_the_encoded_length(text: String, max_bytes in 200..2000_usize) {
            let total: usize = text.chars().map(json_len).sum();
            prop_assert_eq!(total, encoded_len(&text));
            let text = text.repeat(100);
            let cut = truncate_json(&text, max_bytes);
            prop_assert!(encoded_len(&cut) <= max_bytes);
        }
    }
}
