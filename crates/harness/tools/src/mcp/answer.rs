//! What an agent is told: an answer, or a complaint.

use exec_env::filesystem::FileError;
use exec_wire::bytes::encode_append;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;
use serde_json::Value;

use super::{
    patch::ParseError,
    typed::PathError,
    weight::{MAX_ANSWER_BYTES, fitting},
};
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
