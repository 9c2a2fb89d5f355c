//! The tool `list_processes`.

use std::{
    fmt::Write,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    mcp::{
        session::McpContext,
        tool::{self, McpTool, ToolEffect},
        tool_answer::{ToolAnswer, ToolError, truncate_json},
    },
    unified::ProcessSummary,
};

/// Maximum encoded size of a command and of its directory. 64 entries, twice each, fit into an
/// answer.
const MAX_SHOWN_BYTES: usize = 2 << 10;
/// Maximum number of arguments shown.
const MAX_SHOWN_ARGUMENTS: usize = 8;

/// The arguments of `list_processes`: none.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct ListProcesses {}

/// Structured output of `list_processes`.
#[derive(Clone, Debug, JsonSchema, Serialize)]
struct ProcessList {
    /// Commands that are running, and ended commands whose exit was not shown yet.
    processes: Vec<ListedProcess>,
}

/// One command.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(inline)]
struct ListedProcess {
    /// The session_id of write_stdin.
    session_id: u64,
    /// Program and arguments.
    command: Vec<String>,
    /// Directory that it was started in.
    workdir: String,
    /// True if it has a terminal.
    tty: bool,
    /// How long ago it was started.
    started_seconds_ago: u64,
    /// True if it is running; if not, write_stdin shows its exit code.
    running: bool,
    /// Exit code, if it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
}

impl McpTool for ListProcesses {
    const NAME: &'static str = "list_processes";
    const TITLE: &'static str = "List running commands";
    const DESCRIPTION: &'static str = "Lists the commands that exec_command left running, and those whose \
        end was not shown yet, with their session IDs.";
    const EFFECT: ToolEffect = ToolEffect::ReadOnly;

    fn output_schema() -> Option<Arc<JsonObject>> {
        Some(tool::schema::<ProcessList>())
    }

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let now = SystemTime::now();
        let listed = ctx.exec().processes();
        let processes = ProcessList {
            processes: listed.iter().map(|one| describe(one, now, ctx)).collect(),
        };
        let mut text = String::new();
        for process in &processes.processes {
            let state = match (process.running, process.exit_code) {
                (true, _) => "running".to_owned(),
                (false, Some(code)) => format!("exited with code {code}"),
                (false, None) => "lost".to_owned(),
            };
            let command = process.command.last().map_or("", String::as_str);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "session {}: {state}, started {} s ago in {}: {command}",
                process.session_id, process.started_seconds_ago, process.workdir
            );
        }
        if processes.processes.is_empty() {
            text.push_str("Nothing is running.");
        }
        Ok(ToolAnswer::text(text).with(&processes))
    }
}

fn describe(process: &ProcessSummary, now: SystemTime, ctx: &McpContext) -> ListedProcess {
    let age = now
        .duration_since(process.started)
        .unwrap_or(Duration::ZERO);
    ListedProcess {
        session_id: process.number.0,
        command: shorten_argv(&process.argv),
        workdir: truncate_json(&ctx.display_path(&process.cwd), MAX_SHOWN_BYTES).into_owned(),
        tty: process.tty,
        started_seconds_ago: age.as_secs(),
        running: !process.state.has_exited && process.state.failure.is_none(),
        exit_code: process.state.exit_code,
    }
}

/// Shortens program and arguments for the list.
fn shorten_argv(argv: &[String]) -> Vec<String> {
    let max_bytes = MAX_SHOWN_BYTES / argv.len().clamp(1, MAX_SHOWN_ARGUMENTS);
    let shown = argv.iter().take(MAX_SHOWN_ARGUMENTS);
    shown
        .map(|argument| truncate_json(argument, max_bytes).into_owned())
        .collect()
}
