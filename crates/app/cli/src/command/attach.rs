//! `exec-server attach`.

use std::{process::ExitCode, sync::Arc};

use clap::Args;
use exec_client::client::ExecServerClient;
use exec_env::process::ExecProcess;
use exec_tools::unified::TerminalScreen;
use exec_wire::{
    id::OutputSeq,
    process::{ProcessSummary, TerminalSize},
};

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    detached::{self, call_failure},
    failure::CommandFailure,
    logs::replay_end,
    process_session::{
        DetachKeys, ProcessSession, SessionOwner, SignalListener, StdinReader, TerminalUse,
        exit_byte, print_notice, show_outages,
    },
    terminal::{self, StandardStream},
    tunnel::no_notices,
};

/// Follows a process and types into its terminal.
///
/// The process is a detached one, or one of another session that `ps --all` lists. The latter is
/// taken over, and outlives its session from then on. A terminal is redrawn as it is now; other
/// output is shown from now on, and `logs` prints the earlier part. Input goes to the terminal, or
/// to stdin if the process was started with --interactive. Several clients may attach.
///
/// The detach keys, closing the window and Ctrl-C leave the process running. On a terminal, Ctrl-C
/// goes to the process.
#[derive(Args, Clone, Debug)]
pub struct AttachCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Keys that detach from a terminal.
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    pub detach_keys: DetachKeys,

    /// Only shows output; sends no input.
    #[arg(long)]
    pub no_stdin: bool,

    /// Id that `run --detach` printed, or a unique prefix of it.
    pub id: String,
}

impl AttachCommand {
    /// Attaches to the process and forwards input and output until it exits or the user detaches.
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
            true => Some(ScreenSnapshot::take(client, &found).await?),
            false => None,
        };
        let after = match &snapshot {
            Some(snapshot) => snapshot.after,
            None => OutputSeq(now.next_seq.0.saturating_sub(1)),
        };
        let process = show_outages(client, client.attach(id.clone(), Some(after))).await;
        let process = process.map_err(call_failure)?;
        let input = match self.no_stdin {
            true => None,
            false => StdinReader::open().map_err(CommandFailure::failed)?,
        };
        let terminal = match found.tty {
            true => TerminalUse::Pty,
            false => TerminalUse::None,
        };
        if found.tty {
            let complete = snapshot.as_ref().is_some_and(|snapshot| snapshot.complete);
            resize(&*process, complete);
        }
        let session = ProcessSession {
            client: client.clone(),
            process: Arc::clone(&process),
            signals: SignalListener::listen().map_err(CommandFailure::failed)?,
            after,
            owner: SessionOwner::Server,
            input,
            terminal,
            // Piped input contains no key presses.
            keys: (found.tty && StandardStream::Input.is_terminal()).then_some(self.detach_keys),
            snapshot: snapshot.map(|snapshot| snapshot.bytes).unwrap_or_default(),
            limit: None,
            notices: no_notices(),
        };
        let end = session.run().await.map_err(CommandFailure::failed)?;
        end.status(SessionOwner::Server, &id, &env)
    }
}

/// Contents of a terminal screen at one point of the output.
#[derive(Debug)]
struct ScreenSnapshot {
    /// Escape sequences that redraw the screen.
    bytes: Vec<u8>,
    /// Last output event that the screen includes.
    after: OutputSeq,
    /// Whether the screen was built from the complete output.
    complete: bool,
}

impl ScreenSnapshot {
    /// Replays the end of the output on a virtual screen of the local size.
    async fn take(
        client: &ExecServerClient,
        process: &ProcessSummary,
    ) -> Result<Self, CommandFailure> {
        let mut screen = TerminalScreen::new(terminal::size().unwrap_or_default());
        let end = replay_end(client, process, |_, data| screen.feed(&data)).await?;
        Ok(Self {
            bytes: screen.repaint(),
            after: end.last,
            complete: end.complete,
        })
    }
}

/// Resizes the remote terminal to the local size. If its contents are not fully known, resizes
/// twice: programs redraw only when the size changes.
fn resize(process: &dyn ExecProcess, complete: bool) {
    let Some(size) = terminal::size() else {
        return;
    };
    let rows = match size.rows {
        1 => 2,
        rows => rows - 1,
    };
    // `resize` sends its request when called, so the order is kept.
    if !complete {
        drop(process.resize(TerminalSize { rows, ..size }));
    }
    drop(process.resize(size));
}

fn report_exited(env: &ConnectedEnv, process: &ProcessSummary) -> ExitCode {
    let id = &process.process_id;
    let logs = env.line("logs", &[id.as_str()]);
    print_notice(&format!("`{id}` has exited; `{logs}` prints its output"));
    ExitCode::from(process.exit_code.map_or(1, exit_byte))
}
