//! The tool interface, the MCP tool list, and the results of tools.
//!
//! A result is an answer or an error, truncated to the message size that clients accept. The
//! official Python client rejects events above 1 MiB over HTTP. The limit applies to the JSON
//! encoding, in which a control character takes six bytes.

use std::{borrow::Cow, error::Error, sync::Arc};

use exec_wire::{base64_bytes::encode_append, error::error_chain};
use futures_util::future::{BoxFuture, FutureExt};
use rmcp::{
    handler::server::common::schema_for_type,
    model::{CallToolResult, ContentBlock, JsonObject, Tool as Definition, ToolAnnotations},
};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    commands::{ExecCommandTool, ListProcesses, TerminateProcess, WriteStdinTool},
    files::{
        ApplyPatch, EditFile, FindFiles, ListDirectory, ReadFileTool, SearchFiles, WatchFiles,
        WriteFileTool,
    },
    session::McpContext,
    workspace::WorkspaceAccess,
};

/// A tool. The type holds its arguments; the doc comments of its fields become descriptions in the
/// JSON schema.
pub(super) trait McpTool: DeserializeOwned + JsonSchema + Send + 'static {
    /// Name for agents.
    const NAME: &'static str;
    /// Title for people.
    const TITLE: &'static str;
    /// Description for agents.
    const DESCRIPTION: &'static str;
    /// Effect on the environment.
    const EFFECT: ToolEffect;

    /// Returns the schema of the structured output, if there is one.
    fn output_schema() -> Option<Arc<JsonObject>> {
        None
    }

    /// Calls the tool.
    fn call(self, ctx: &McpContext) -> impl Future<Output = Result<ToolAnswer, ToolError>> + Send;
}

/// Effect of a tool on the environment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ToolEffect {
    /// Reads only.
    ReadOnly,
    /// Changes files idempotently.
    Replace,
    /// Changes files on every call.
    Edit,
    /// Runs programs with arbitrary effects.
    Run,
    /// Terminates programs.
    Terminate,
}

impl ToolEffect {
    /// Returns whether the tool is useless in a read-only workspace.
    pub(super) fn writes_files(self) -> bool {
        matches!(self, Self::Replace | Self::Edit)
    }

    fn annotations(self, title: &str) -> ToolAnnotations {
        ToolAnnotations::with_title(title)
            .read_only(self == Self::ReadOnly)
            .destructive(self != Self::ReadOnly)
            .idempotent(matches!(
                self,
                Self::ReadOnly | Self::Replace | Self::Terminate
            ))
            .open_world(self == Self::Run)
    }
}

/// Parses the arguments of a tool.
pub(super) fn parse<T: McpTool>(arguments: Option<JsonObject>) -> Result<T, ToolError> {
    let mut arguments = Value::Object(arguments.unwrap_or_default());
    drop_nulls(&mut arguments);
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let path = error.path().to_string();
        match path.as_str() {
            "." => ToolError(format!("arguments of {}: {}", T::NAME, error.inner())),
            path => ToolError(format!(
                "argument `{path}` of {}: {}",
                T::NAME,
                error.inner()
            )),
        }
    })
}

/// Drops null members: some clients send every argument.
fn drop_nulls(value: &mut Value) {
    if let Value::Object(object) = value {
        object.retain(|_, member| !member.is_null());
        object.values_mut().for_each(drop_nulls);
    }
}

/// Returns the schema of a type in a form that every client supports: optional members may be
/// absent, but not null. Member names must not collide with schema keywords.
pub(super) fn schema<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    let mut schema = (*schema_for_type::<T>()).clone();
    schema.remove("title");
    schema.remove("description");
    schema.values_mut().for_each(simplify);
    // Some clients reject an object schema without `properties`.
    let empty = || Value::Object(JsonObject::new());
    schema.entry("properties").or_insert_with(empty);
    Arc::new(schema)
}

fn simplify(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if let Some(Value::Array(types)) = object.get("type") {
                let named = types.iter().find(|one| *one != "null").cloned();
                object.insert("type".to_owned(), named.unwrap_or(Value::Null));
            }
            // An optional object is written as `{"anyOf": [X, null]}`.
            if let Some(Value::Array(choices)) = object.get_mut("anyOf")
                && choices.len() == 2
                && choices[1].get("type") == Some(&Value::from("null"))
                && let Value::Object(choice) = choices.swap_remove(0)
            {
                object.remove("anyOf");
                for (name, value) in choice {
                    object.entry(name).or_insert(value);
                }
            }
            // Defaults are described in text; `null` or empty defaults would only confuse.
            for name in ["format", "default"] {
                object.remove(name);
            }
            if let Some(Value::String(text)) = object.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            if let Some(Value::Array(choices)) = object.get_mut("enum") {
                choices.retain(|choice| !choice.is_null());
            }
            object.values_mut().for_each(simplify);
        }
        Value::Array(values) => values.iter_mut().for_each(simplify),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A tool in the tool list.
pub(super) struct RegisteredTool {
    pub(super) definition: Definition,
    effect: ToolEffect,
    /// Parses the arguments and calls the tool.
    pub(super) call: ToolCallFn,
}

type ToolCallFn =
    for<'a> fn(Option<JsonObject>, &'a McpContext) -> BoxFuture<'a, Result<ToolAnswer, ToolError>>;

impl RegisteredTool {
    fn new<T: McpTool>() -> Self {
        let definition = Definition::new(T::NAME, T::DESCRIPTION, schema::<T>())
            .with_title(T::TITLE)
            .with_annotations(T::EFFECT.annotations(T::TITLE));
        Self {
            definition: match T::output_schema() {
                Some(schema) => definition.with_raw_output_schema(schema),
                None => definition,
            },
            effect: T::EFFECT,
            call: |arguments, ctx| async move { parse::<T>(arguments)?.call(ctx).await }.boxed(),
        }
    }
}

impl std::fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.definition.name.fmt(f)
    }
}

/// Returns the tool list for a sandbox mode.
pub(super) fn tools(access: WorkspaceAccess) -> Vec<RegisteredTool> {
    let mut tools = vec![
        RegisteredTool::new::<ExecCommandTool>(),
        RegisteredTool::new::<WriteStdinTool>(),
        RegisteredTool::new::<ListProcesses>(),
        RegisteredTool::new::<TerminateProcess>(),
        RegisteredTool::new::<ReadFileTool>(),
        RegisteredTool::new::<WriteFileTool>(),
        RegisteredTool::new::<EditFile>(),
        RegisteredTool::new::<ApplyPatch>(),
        RegisteredTool::new::<ListDirectory>(),
        RegisteredTool::new::<FindFiles>(),
        RegisteredTool::new::<SearchFiles>(),
        RegisteredTool::new::<WatchFiles>(),
    ];
    if access == WorkspaceAccess::ReadOnly {
        tools.retain(|tool| !tool.effect.writes_files());
    }
    tools
}

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
#[derive(Debug)]
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

impl<E: Error> From<E> for ToolError {
    fn from(error: E) -> Self {
        Self(error_chain(&error))
    }
}

/// Shortens a line to a number of characters.
pub(super) fn shorten_line(line: &str, max_chars: usize) -> String {
    match line.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
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
