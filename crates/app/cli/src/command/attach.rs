//! `exec-server attach`.

use std::{process::ExitCode, sync::Arc};

use clap::Args;
use exec_client::client::ExecServerClient;
use exec_env::process::ExecProcess;
use exec_tools::unified::Screen;
use exec_wire::{
    id::{OutputSeq, ProcessId},
    process::{ProcessSummary, TerminalSize},
};

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    detached::{self, call_failure},
    failure::{CommandFailure, FailureKind},
    logs::retained_output,
    process_session::{
        DetachKeys, ProcessOwner, ProcessSession, SignalListener, StdinReader, TerminalUse,
        exit_byte, print_notice, show_outages,
    },
    terminal::{self, StandardStream},
};

/// Follows a process and types into its terminal.
///
/// It may be a detached one, or one of another session that `ps --all` lists: that is taken over, and
/// outlives its session from then on. A terminal is shown as it is now; of other output what is written
/// from now on is shown, and `logs` has what was written before. What is typed goes to the process: to
/// its terminal, or to its input if it was started with --interactive. Several may attach.
///
/// The detach keys leave it running; so does closing the window, and Ctrl-C, unless it has a terminal,
/// which gets it.
#[derive(Args, Clone, Debug)]
pub struct AttachCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Keys that leave the process, on a terminal.
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    pub detach_keys: DetachKeys,

    /// Shows only; nothing that is typed goes to the process.
    #[arg(long)]
    pub no_stdin: bool,

    /// The id that `run --detach` printed, or a beginning of it.
    pub id: String,
}

impl AttachCommand {
    /// Follows a process and types into its terminal.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        let client = &env.client;
        let found = show_outages(client, detached::find_attachable(client, &self.id)).await?;
        if !found.detached {
            show_outages(client, detached::adopt_process(client, &found)).await?;
        }
        let id = found.process_id.clone();
        if !found.running {
            return Ok(report_exited(&env, &found));
        }
        let now = show_outages(client, detached::output_position(client, &id)).await?;
        if now.exited {
            let exit_code = now.exit_code;
            return Ok(report_exited(&env, &ProcessSummary { exit_code, ..found }));
        }
        let snapshot = match found.tty && StandardStream::Output.is_terminal() {
            true => Some(show_outages(client, ScreenSnapshot::take(client, &id)).await?),
            false => None,
        };
        let after = match &snapshot {
            Some(snapshot) => snapshot.after,
            None => OutputSeq(now.next_seq.0.saturating_sub(1)),
        };
        let process = show_outages(client, client.attach(id.clone(), Some(after))).await;
        let process = process.map_err(call_failure)?;
        let failed = |error| CommandFailure::new(FailureKind::Failed, error);
        let input = match self.no_stdin {
            true => None,
            false => StdinReader::open().map_err(failed)?,
        };
        let terminal = match found.tty {
            true => TerminalUse::Theirs,
            false => TerminalUse::None,
        };
        if found.tty {
            let complete = snapshot.as_ref().is_some_and(|snapshot| snapshot.complete);
            resize(&*process, complete);
        }
        let talk = ProcessSession {
            client: client.clone(),
            process: Arc::clone(&process),
            signals: SignalListener::listen().map_err(failed)?,
            after,
            owner: ProcessOwner::Server,
            input,
            terminal,
            // What is piped in holds no keys.
            keys: (found.tty && StandardStream::Input.is_terminal()).then_some(self.detach_keys),
            snapshot: snapshot.map(|snapshot| snapshot.bytes).unwrap_or_default(),
            limit: None,
        };
        let end = talk.run().await.map_err(failed)?;
        end.status(ProcessOwner::Server, &id, &env)
    }
}

/// What a terminal shows.
#[derive(Debug)]
struct ScreenSnapshot {
    /// What makes our terminal show it.
    bytes: Vec<u8>,
    /// The last event that it shows.
    after: OutputSeq,
    /// Whether nothing that was written before is missing.
    complete: bool,
}

impl ScreenSnapshot {
    /// Makes it from the output that is kept, as a terminal of our size shows that.
    async fn take(client: &ExecServerClient, id: &ProcessId) -> Result<Self, CommandFailure> {
        let retained_output = retained_output(client, id).await?;
        let mut screen = Screen::new(terminal::size().unwrap_or_default());
        for (_, data) in &retained_output.pieces {
            screen.feed(data);
        }
        Ok(Self {
            bytes: screen.repaint(),
            after: retained_output.last,
            complete: !retained_output.incomplete && !retained_output.gap,
        })
    }
}

/// Gives a program's terminal our size. If what it has drawn is not known, it is made to draw again,
/// which it only does when the size changes.
fn resize(process: &dyn ExecProcess, complete: bool) {
    let Some(size) = terminal::size() else {
        return;
    };
    let rows = match size.rows {
        1 => 2,
        rows => rows - 1,
    };
    // The requests are sent by asking, in this order.
    if !complete {
        drop(process.resize(TerminalSize { rows, ..size }));
    }
    drop(process.resize(size));
}

fn report_exited(env: &ConnectedEnv, process: &ProcessSummary) -> ExitCode {
    let id = &process.process_id;
    let logs = env.line("logs", &[id.as_str()]);
    print_notice(&format!("`{id}` has ended; `{logs}` prints what it wrote"));
    ExitCode::from(process.exit_code.map_or(1, exit_byte))
}
