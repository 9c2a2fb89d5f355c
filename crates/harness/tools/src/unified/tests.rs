//! Unified exec on a scripted backend with paused time.

mod durable_commands;
mod ending;
mod events;
mod retrying;
mod waiting;
mod writing;

use std::{sync::Arc, time::Duration};

use exec_core::output_log::ExitInfo;
use exec_env::environment::Environment;
use exec_local::filesystem::LocalFileSystem;
use exec_test_support::fake_environment::FakeBackend;
use tokio::sync::watch;

use super::{
    CallId, CommandProgram, EventSink, ExecCommand, ExecEvent, OutputView, ProcessNumber,
    ToolOutput, ToolPolicy, UnifiedExec, UnifiedExecSettings, UnrestrictedPolicy, WaitFor,
    WriteStdin, WriteStdinError,
};

/// Unified exec with its backend and events.
struct ExecFixture {
    exec: UnifiedExec,
    backend: Arc<FakeBackend>,
    events: Arc<EventLog>,
}

impl ExecFixture {
    fn new() -> Self {
        Self::with(UnifiedExecSettings::default(), Arc::new(UnrestrictedPolicy))
    }

    fn with(settings: UnifiedExecSettings, policy: Arc<dyn ToolPolicy>) -> Self {
        let (backend, events) = (
            Arc::new(FakeBackend::default()),
            Arc::new(EventLog::default()),
        );
        let environment = Environment {
            files: Arc::new(LocalFileSystem::default()),
            ..backend.environment()
        };
        Self {
            exec: UnifiedExec::new(environment, settings, policy, events.clone()),
            backend,
            events,
        }
    }

    /// Runs a command for its first window.
    async fn run(&self, command: ExecCommand) -> ToolOutput {
        self.exec.exec_command(command).await.unwrap()
    }

    /// Starts a command that keeps running.
    async fn running(&self) -> ProcessNumber {
        let output = self.run(quick()).await;
        output.running.expect("it runs on")
    }

    /// Polls a command.
    async fn look(&self, number: ProcessNumber) -> Result<ToolOutput, WriteStdinError> {
        self.exec.write_stdin(write(number, "")).await
    }
}

/// A command named `c`.
fn command() -> ExecCommand {
    ExecCommand {
        call_id: CallId("c".to_owned()),
        program: CommandProgram::Argv(vec!["prog".to_owned()]),
        workdir: None,
        env: Default::default(),
        tty: false,
        stdin: None,
        yield_time: None,
        wait: WaitFor::Exit,
        max_output_tokens: None,
        view: OutputView::Plain,
        justification: None,
    }
}

/// A command with the shortest first wait.
fn quick() -> ExecCommand {
    ExecCommand {
        yield_time: Some(Duration::ZERO),
        ..command()
    }
}

/// A write, or a poll if empty.
fn write(number: ProcessNumber, chars: &str) -> WriteStdin {
    WriteStdin {
        call_id: CallId("w".to_owned()),
        number,
        chars: chars.to_owned(),
        close: false,
        yield_time: None,
        wait: WaitFor::Exit,
        max_output_tokens: None,
        view: OutputView::Plain,
    }
}

/// Returns the text, the exit code and whether it is running.
fn summary(output: &ToolOutput) -> (&str, Option<i32>, bool) {
    let code = output.exit.as_ref().map(|exit| exit.code);
    (&output.transcript.text, code, output.running.is_some())
}

/// Records events as text lines.
#[derive(Debug, Default)]
struct EventLog(watch::Sender<Vec<String>>);

impl EventLog {
    /// Returns the recorded lines.
    fn lines(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    /// Waits for this many events.
    async fn wait_for_count(&self, count: usize) -> Vec<String> {
        let mut events = self.0.subscribe();
        events
            .wait_for(|events| events.len() >= count)
            .await
            .unwrap()
            .clone()
    }
}

impl EventSink for EventLog {
    fn handle_event(&self, event: ExecEvent) {
        let line = match event {
            ExecEvent::ExecCommandBegin {
                call_id,
                number,
                argv,
                cwd,
            } => format!("{call_id} begin {number} {} in {cwd}", argv.join(" ")),
            ExecEvent::ExecCommandOutputDelta {
                call_id,
                stream,
                chunk,
            } => format!("{call_id} {stream:?} {}", String::from_utf8_lossy(&chunk)),
            ExecEvent::TerminalInteraction {
                call_id,
                number,
                stdin,
            } => format!("{call_id} stdin {number} {stdin}"),
            ExecEvent::ExecCommandEnd {
                call_id,
                number,
                outcome,
                aggregated_output,
                duration,
            } => {
                let outcome = outcome.map(|ExitInfo { code, .. }| code);
                let outcome = outcome.map_err(|error| error.to_string());
                let millis = duration.as_millis();
                format!("{call_id} end {number} {outcome:?} {aggregated_output:?} {millis}ms")
            }
        };
        self.0.send_modify(|events| events.push(line));
    }
}
