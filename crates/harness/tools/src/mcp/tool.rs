//! The tool interface and the MCP tool list.

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

/// Returns the MCP definition of a tool.
pub(super) fn definition<T: McpTool>() -> Definition {
    let definition = Definition::new(T::NAME, T::DESCRIPTION, schema::<T>())
        .with_title(T::TITLE)
        .with_annotations(T::EFFECT.annotations(T::TITLE));
    match T::output_schema() {
        Some(schema) => definition.with_raw_output_schema(schema),
        None => definition,
    }
}

/// Parses the arguments and calls the tool.
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

    /// Returns the MCP definition.
    pub(super) fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Parses the arguments and calls the tool.
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
