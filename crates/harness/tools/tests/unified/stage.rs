//! Unified exec in a place, and short ways to call it.

use std::{future::Future, sync::Arc, time::Duration};

use exec_env::{environment::Environment, process::ProcessNumber};
use exec_tools::unified::{
    CallId, ExecCommand, Program, Settings, ToolOutput, ToolPolicy, UnifiedExec, Unrestricted,
    View, WaitFor, WriteStdin,
};
use regex::bytes::Regex;

use crate::sink::Told;

/// Longest that a case may take.
const BOUND: Duration = Duration::from_secs(60);

/// Runs a case.
pub(crate) async fn bounded(case: impl Future<Output = ()>) {
    let bounded = tokio::time::timeout(BOUND, case).await;
    bounded.expect("a case ends in time");
}

/// Unified exec, and what it tells.
pub(crate) struct Stage {
    pub(crate) exec: UnifiedExec,
    pub(crate) told: Arc<Told>,
}

impl Stage {
    pub(crate) fn new(place: Environment) -> Self {
        Self::with(place, Arc::new(Unrestricted))
    }

    pub(crate) fn with(place: Environment, policy: Arc<dyn ToolPolicy>) -> Self {
        let told = Arc::new(Told::default());
        let exec = UnifiedExec::new(place, Settings::default(), policy, told.clone());
        Self { exec, told }
    }

    /// Runs a command.
    pub(crate) async fn run(&self, call: ExecCommand) -> ToolOutput {
        self.exec.exec_command(call).await.unwrap()
    }

    /// Writes to a command.
    pub(crate) async fn write(
        &self,
        number: ProcessNumber,
        chars: &str,
        wait: WaitFor,
    ) -> ToolOutput {
        let call = WriteStdin {
            call_id: CallId("w".to_owned()),
            number,
            chars: chars.to_owned(),
            close: false,
            yield_time: Some(Duration::from_secs(30)),
            wait,
            max_output_tokens: None,
            view: View::Plain,
        };
        self.exec.write_stdin(call).await.unwrap()
    }
}

/// A line for `sh`.
pub(crate) fn sh(line: &str) -> ExecCommand {
    ExecCommand {
        call_id: CallId("c".to_owned()),
        program: Program::Shell {
            line: line.to_owned(),
            shell: Some("/bin/sh".to_owned()),
            login: false,
        },
        workdir: None,
        env: Default::default(),
        tty: false,
        stdin: None,
        yield_time: Some(Duration::from_secs(30)),
        wait: WaitFor::Exit,
        max_output_tokens: None,
        view: View::Plain,
        justification: None,
    }
}

/// Waits for output that matches.
pub(crate) fn until(pattern: &str) -> WaitFor {
    WaitFor::Pattern(Regex::new(pattern).unwrap())
}

/// The code of a command that has ended.
pub(crate) fn code(output: &ToolOutput) -> Option<i32> {
    output.exit.as_ref().map(|exit| exit.code)
}
