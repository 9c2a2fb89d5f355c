//! Unified exec on a fake environment, and short ways to call it.

use std::{sync::Arc, time::Duration};

use exec_env::{
    catalog::NoCatalog, environment::Environment, http::NoHttpClient, process::ProcessNumber,
};
use exec_local::filesystem::LocalFileSystem;

use super::{fake::Backend, sink::Told};
use crate::unified::{
    CallId, ExecCommand, Program, Settings, ToolOutput, ToolPolicy, UnifiedExec, Unrestricted,
    View, WaitFor, WriteStdin, WriteStdinError,
};

/// Unified exec, and what is around it.
pub(super) struct Stage {
    pub(super) exec: UnifiedExec,
    pub(super) backend: Arc<Backend>,
    pub(super) told: Arc<Told>,
}

impl Stage {
    pub(super) fn new() -> Self {
        Self::with(Settings::default(), Arc::new(Unrestricted))
    }

    pub(super) fn with(settings: Settings, policy: Arc<dyn ToolPolicy>) -> Self {
        let (backend, told) = (Arc::new(Backend::default()), Arc::new(Told::default()));
        let environment = Environment {
            backend: backend.clone(),
            files: Arc::new(LocalFileSystem::default()),
            http: Arc::new(NoHttpClient),
            catalog: Arc::new(NoCatalog),
        };
        Self {
            exec: UnifiedExec::new(environment, settings, policy, told.clone()),
            backend,
            told,
        }
    }

    /// Runs a command for its first window.
    pub(super) async fn run(&self, command: ExecCommand) -> ToolOutput {
        self.exec.exec_command(command).await.unwrap()
    }

    /// Starts a command that runs on.
    pub(super) async fn running(&self) -> ProcessNumber {
        let output = self.run(quick()).await;
        output.running.expect("it runs on")
    }

    /// Looks at a command.
    pub(super) async fn look(&self, number: ProcessNumber) -> Result<ToolOutput, WriteStdinError> {
        self.exec.write_stdin(write(number, "")).await
    }
}

/// A command named `c`.
pub(super) fn command() -> ExecCommand {
    ExecCommand {
        call_id: CallId("c".to_owned()),
        program: Program::Argv(vec!["prog".to_owned()]),
        workdir: None,
        env: Default::default(),
        tty: false,
        stdin: None,
        yield_time: None,
        wait: WaitFor::Exit,
        max_output_tokens: None,
        view: View::Plain,
        justification: None,
    }
}

/// A command whose first window is as short as can be.
pub(super) fn quick() -> ExecCommand {
    ExecCommand {
        yield_time: Some(Duration::ZERO),
        ..command()
    }
}

/// A write, or a look.
pub(super) fn write(number: ProcessNumber, chars: &str) -> WriteStdin {
    WriteStdin {
        call_id: CallId("w".to_owned()),
        number,
        chars: chars.to_owned(),
        close: false,
        yield_time: None,
        wait: WaitFor::Exit,
        max_output_tokens: None,
        view: View::Plain,
    }
}

/// The text, the code and whether it runs on.
pub(super) fn seen(output: &ToolOutput) -> (&str, Option<i32>, bool) {
    let code = output.exit.as_ref().map(|exit| exit.code);
    (&output.transcript.text, code, output.running.is_some())
}
