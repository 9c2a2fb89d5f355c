//! `exec_command`.

use std::{collections::BTreeMap, sync::Arc};

use exec_env::command::Stdin;
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
    unified::{ExecCommand, Program},
};

/// The arguments of `exec_command`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct ExecCommandTool {
    /// Shell command to run.
    cmd: String,
    /// Directory to run it in: absolute, or relative to the workspace. Default: the workspace.
    #[serde(default)]
    workdir: Option<String>,
    /// Program of the shell. Default: the account's own shell.
    #[serde(default)]
    shell: Option<String>,
    /// Runs the shell as a login shell, which reads the profile. Default: false.
    #[serde(default)]
    login: bool,
    /// Gives the command a terminal, which write_stdin types into. Needed by full-screen and prompting
    /// programs. Default: false, pipes.
    #[serde(default)]
    tty: bool,
    /// Lets write_stdin write to a command without a terminal. Default: false: it reads nothing, and
    /// programs that read to the end of their input do not wait for it.
    #[serde(default)]
    open_stdin: bool,
    /// How long to wait for its end before returning with what it has said so far, in milliseconds.
    /// Default: 10000; 250 to 600000, or to 50000 if the client takes no notifications of progress.
    #[serde(default)]
    yield_time_ms: Option<u64>,
    /// Most tokens of output to show; the middle of longer output is left out. Default: 10000.
    #[serde(default)]
    max_output_tokens: Option<usize>,
    /// What ends the wait before the command does.
    #[serde(default)]
    wait_for: Option<WaitForArgument>,
    /// How to show the output: `plain` text, `raw` with escape codes, or the `screen` of the terminal as it
    /// is now (needs tty). Default: plain.
    #[serde(default)]
    view: Option<ViewArgument>,
    /// Variables to set.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Why the command is needed, in a sentence.
    #[serde(default)]
    justification: Option<String>,
}

impl Tool for ExecCommandTool {
    const NAME: &'static str = "exec_command";
    const TITLE: &'static str = "Run a command";
    const DESCRIPTION: &'static str = "Runs a shell command. Returns its output and its exit code, or, if \
        it still runs when yield_time_ms is over, its output so far and a session ID: go on with write_stdin. \
        A command that fails is not an error of the tool: look at the exit code. What a command leaves in \
        the background (`server &`) is ended when its end is shown: run a server as a command of its own.";
    const EFFECT: Effect = Effect::Runs;

    fn answers() -> Option<Arc<JsonObject>> {
        Some(tool::schema::<CommandOutput>())
    }

    async fn call(self, work: &Work) -> Result<Answer, Complaint> {
        if self.cmd.trim().is_empty() {
            return Err(Complaint::new("`cmd` must not be empty"));
        }
        let workdir = match &self.workdir {
            Some(typed) => work.path(typed)?,
            None => work.root().clone(),
        };
        work.listen_to(Speaker::Call(work.call().clone()));
        let command = ExecCommand {
            call_id: work.call().clone(),
            program: Program::Shell {
                line: self.cmd,
                shell: self.shell,
                login: self.login,
            },
            workdir: Some(workdir),
            env: self.env,
            tty: self.tty,
            stdin: self.open_stdin.then_some(Stdin::Piped),
            yield_time: window(work, self.yield_time_ms),
            wait: WaitForArgument::read(self.wait_for)?,
            max_output_tokens: self.max_output_tokens,
            view: self.view.unwrap_or_default().into(),
            justification: self.justification,
        };
        let output = work.exec().exec_command(command).await;
        Ok(answer(output?, work))
    }
}
