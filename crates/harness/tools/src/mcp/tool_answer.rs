//! What an agent is told: an answer, or a complaint.

use std::borrow::Cow;

use exec_env::filesystem::FileError;
use exec_wire::bytes::encode_append;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;
use serde_json::Value;

use super::{patch::ParseError, typed_path::PathError};
use crate::unified::ExecCommandError;

/// What a tool came to.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    content: ContentBlock,
    structured: Option<Value>,
}

impl Answer {
    /// Text. Its middle is left out if it is more than an answer holds.
    pub(super) fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            content: ContentBlock::text(fitting(&text, MAX_ANSWER_BYTES)),
            structured: None,
        }
    }

    /// A picture.
    pub(super) fn image(data: &[u8], kind: &'static str) -> Self {
        let mut text = Vec::new();
        encode_append(data, &mut text);
        Self {
            content: ContentBlock::image(String::from_utf8_lossy(&text), kind),
            structured: None,
        }
    }

    /// Adds the same for programs. Both together must weigh no more than an answer may.
    #[must_use]
    pub(super) fn with(mut self, structured: &impl Serialize) -> Self {
        self.structured = serde_json::to_value(structured).ok();
        self
    }

    /// Turns it into what travels.
    pub(super) fn into_result(self) -> CallToolResult {
        let mut result = CallToolResult::success(vec![self.content]);
        result.structured_content = self.structured;
        result
    }
}

/// Why a tool did nothing, or not all of it: what the agent reads to do better.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Complaint(pub(super) String);

impl Complaint {
    /// Complains.
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// Turns it into what travels.
    pub(super) fn into_result(self) -> CallToolResult {
        let text = fitting(&self.0, MAX_ANSWER_BYTES);
        CallToolResult::error(vec![ContentBlock::text(text)])
    }
}

impl From<FileError> for Complaint {
    fn from(error: FileError) -> Self {
        Self(error.to_string())
    }
}

impl From<PathError> for Complaint {
    fn from(error: PathError) -> Self {
        Self(error.to_string())
    }
}

impl From<ParseError> for Complaint {
    fn from(error: ParseError) -> Self {
        Self(error.to_string())
    }
}

impl From<ExecCommandError> for Complaint {
    fn from(error: ExecCommandError) -> Self {
        Self(chain(&error))
    }
}

/// An error and what caused it, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
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

/// What an answer may weigh, all in all. The rest of a message is its envelope.
pub(super) const MAX_ANSWER_BYTES: usize = 960 << 10;

/// Most that the line weighs that stands for what was left out.
const MARKER_BYTES: usize = 128;

/// Returns text that weighs no more than this: its beginning and its end, if need be.
pub(super) fn fitting(text: &str, most: usize) -> Cow<'_, str> {
    let total: usize = text.chars().map(weight).sum();
    if total <= most {
        return Cow::Borrowed(text);
    }
    let side = most.saturating_sub(MARKER_BYTES) / 2;
    let head = prefix(text.chars(), side);
    let tail = prefix(text.chars().rev(), side);
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

/// Returns how many bytes the first characters have that weigh no more than this.
fn prefix(characters: impl Iterator<Item = char>, most: usize) -> usize {
    let mut weighs = 0;
    let fits = characters.take_while(|character| {
        weighs += weight(*character);
        weighs <= most
    });
    fits.map(char::len_utf8).sum()
}

/// What a character takes in a JSON string.
fn weight(character: char) -> usize {
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

    fn weighed(text: &str) -> usize {
        serde_json::to_string(text).unwrap().len() - 2
    }

    #[test]
    fn both_ends_stay_and_what_is_missing_is_counted() {
        let text = format!("first\n{}last", "\u{1}".repeat(10_000));
        let cut = fitting(&text, 1000);
        assert!(
            cut.starts_with("first\n\u{1}") && cut.ends_with("\u{1}last"),
            "{cut}"
        );
        assert!(cut.contains(" bytes left out"), "{cut}");
        assert!(weighed(&cut) <= 1000);
    }

    proptest! {
        #[test]
        fn every_text_is_weighed_as_it_is_written(text: String, most in 200..2000_usize) {
            let total: usize = text.chars().map(weight).sum();
            prop_assert_eq!(total, weighed(&text));
            let text = text.repeat(100);
            let cut = fitting(&text, most);
            prop_assert!(weighed(&cut) <= most);
        }
    }
}
