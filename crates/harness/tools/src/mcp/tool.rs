//! What a tool is: a name, arguments that describe themselves, and a call.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use rmcp::{
    handler::server::common::schema_for_type,
    model::{JsonObject, Tool as Definition, ToolAnnotations},
};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    commands::{ExecCommandTool, ListProcesses, TerminateProcess, WriteStdinTool},
    files::{
        ApplyPatch, EditFile, FindFiles, ListDirectory, ReadFileTool, SearchFiles, WatchFiles,
        WriteFileTool,
    },
    session::McpContext,
    tool_answer::{ToolAnswer, ToolError},
    workspace::Enclosure,
};

/// A tool. The type is its arguments; what is written above a member is what an agent reads of it.
pub(super) trait McpTool: DeserializeOwned + JsonSchema + Send + 'static {
    /// What agents call it.
    const NAME: &'static str;
    /// What people call it.
    const TITLE: &'static str;
    /// What an agent must know to use it.
    const DESCRIPTION: &'static str;
    /// What it does to the world.
    const EFFECT: ToolEffect;

    /// Describes the structured part of its answers, if they have one.
    fn output_schema() -> Option<Arc<JsonObject>> {
        None
    }

    /// Does it.
    fn call(self, ctx: &McpContext) -> impl Future<Output = Result<ToolAnswer, ToolError>> + Send;
}

/// What a tool does to the world.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ToolEffect {
    /// It looks.
    ReadOnly,
    /// It changes files. The second time changes nothing more.
    Replace,
    /// It changes files, each time.
    Edit,
    /// It runs programs, which do what they like.
    Run,
    /// It ends programs.
    Terminate,
}

impl ToolEffect {
    /// Whether it is of no use where nothing can be written.
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

/// What clients are told of a tool.
pub(super) fn definition<T: McpTool>() -> Definition {
    let definition = Definition::new(T::NAME, T::DESCRIPTION, schema::<T>())
        .with_title(T::TITLE)
        .with_annotations(T::EFFECT.annotations(T::TITLE));
    match T::output_schema() {
        Some(schema) => definition.with_raw_output_schema(schema),
        None => definition,
    }
}

/// Reads the arguments and calls the tool.
pub(super) async fn parse_and_call<T: McpTool>(
    arguments: Option<JsonObject>,
    ctx: &McpContext,
) -> Result<ToolAnswer, ToolError> {
    let mut arguments = Value::Object(arguments.unwrap_or_default());
    drop_nulls(&mut arguments);
    let tool: T = serde_path_to_error::deserialize(arguments).map_err(|error| {
        let path = error.path().to_string();
        match path.as_str() {
            "." => ToolError(format!("arguments of {}: {}", T::NAME, error.inner())),
            path => ToolError(format!(
                "argument `{path}` of {}: {}",
                T::NAME,
                error.inner()
            )),
        }
    })?;
    tool.call(ctx).await
}

/// Leaves out members that are null: some clients send every argument that there is.
fn drop_nulls(value: &mut Value) {
    if let Value::Object(object) = value {
        object.retain(|_, member| !member.is_null());
        object.values_mut().for_each(drop_nulls);
    }
}

/// The schema of a type, in the words that every client understands: an optional member is one that may
/// be left out, not one that may be null. No member may be called like a word of schemas.
pub(super) fn schema<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    let mut schema = (*schema_for_type::<T>()).clone();
    schema.remove("title");
    schema.remove("description");
    schema.values_mut().for_each(simplify);
    // Some clients do not take an object that does not say that it is empty.
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
            // `{"anyOf": [X, null]}` is how an optional object is written.
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
            // Every default is told in words, and one of `null` or of nothing only confuses.
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

/// A tool that clients may call.
pub(super) struct RegisteredTool {
    definition: Definition,
    effect: ToolEffect,
    call: ToolCallFn,
}

type ToolCallFn =
    for<'a> fn(Option<JsonObject>, &'a McpContext) -> BoxFuture<'a, Result<ToolAnswer, ToolError>>;

impl RegisteredTool {
    fn new<T: McpTool>() -> Self {
        Self {
            definition: definition::<T>(),
            effect: T::EFFECT,
            call: |arguments, ctx| parse_and_call::<T>(arguments, ctx).boxed(),
        }
    }

    /// What clients are told of it.
    pub(super) fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Reads the arguments and calls it.
    pub(super) async fn call(
        &self,
        arguments: Option<JsonObject>,
        ctx: &McpContext,
    ) -> Result<ToolAnswer, ToolError> {
        (self.call)(arguments, ctx).await
    }
}

impl std::fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.definition.name.fmt(f)
    }
}

/// Every tool that is of use where files may be treated like this.
pub(super) fn tools(enclosure: Enclosure) -> Vec<RegisteredTool> {
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
    if enclosure == Enclosure::ReadOnly {
        tools.retain(|tool| !tool.effect.writes_files());
    }
    tools
}
