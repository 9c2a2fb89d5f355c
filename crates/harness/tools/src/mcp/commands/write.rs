//! `write_stdin`.

use std::sync::Arc;

use exec_env::process::ProcessNumber;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    output::{CommandOutput, answer},
    wait::{ViewArgument, WaitForArgument, window},
};
use crate::{
    mcp::{
        answer::{Answer, Complaint},
        tool::{self, Effect, Tool},
        words::Speaker,
        work::Work,
    },
    unified::WriteStdin,
};

/// The arguments of `write_stdin`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct WriteStdinTool {
    /// Session ID that exec_command returned.
    session_id: u64,
    /// Characters to write, such as "y\n"; "\u0003" alone (Ctrl-C) interrupts every command, also one
    /// without a terminal. Default: none, only looks.
    #[serde(default)]
    chars: String,
    /// Ends the input behind that, for commands that read to the end. Default: false.
    #[serde(default)]
    close_stdin: bool,
    /// How long to wait for more output, in milliseconds. Default: 250 after writing, else 5000; 250 to
    /// 600000, or to 50000 if the client takes no notifications of progress.
    #[serde(default)]
    yield_time_ms: Option<u64>,
    /// Most tokens of output to show. Default: 10000.
    #[serde(default)]
    max_output_tokens: Option<usize>,
    /// What ends the wait before the command does.
    #[serde(default)]
    wait_for: Option<WaitForArgument>,
    /// How to show the output: `plain`, `raw`, or the `screen` of the terminal as it is now. Default: plain.
    #[serde(default)]
    view: Option<ViewArgument>,
}

impl Tool for WriteStdinTool {
    const NAME: &'static str = "write_stdin";
    const TITLE: &'static str = "Write to a running command";
    const DESCRIPTION: &'static str = "Writes to a command that exec_command left running, or only waits \
        for it, and returns its output since the last call and, if it ended, its exit code. It can write to \
        commands that were started with tty or open_stdin, and interrupt every one.";
    const EFFECT: Effect = Effect::Runs;

    fn answers() -> Option<Arc<JsonObject>> {
        Some(tool::schema::<CommandOutput>())
    }

    async fn call(self, work: &Work) -> Result<Answer, Complaint> {
        let number = ProcessNumber(self.session_id);
        work.listen_to(Speaker::Number(number));
        let write = WriteStdin {
            call_id: work.call().clone(),
            number,
            chars: self.chars,
            close: self.close_stdin,
            yield_time: window(work, self.yield_time_ms),
            wait: WaitForArgument::read(self.wait_for)?,
            max_output_tokens: self.max_output_tokens,
            view: self.view.unwrap_or_default().into(),
        };
        let output = work.exec().write_stdin(write).await;
        Ok(answer(output?, work))
    }
}
