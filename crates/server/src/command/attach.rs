//! `exec-server attach`.

use std::{process::ExitCode, sync::Arc};

use clap::Args;
use exec_env::process::ExecProcess;
use exec_wire::{
    id::OutputSeq,
    process::{ProcessSummary, TerminalSize},
};

use super::{
    detached::{self, call_failed},
    failure::{Failure, FailureKind},
    place::{Place, Where},
    stream::{DetachKeys, Input, Owner, Signals, Talk, Terminal, byte, complain, telling},
    terminal::{self, Standard},
};

/// Follows a detached process and types into its terminal.
///
/// What it writes from now on is shown; `logs` has what it wrote before. What is typed goes to it: to
/// its terminal, or to its input if it was started with --interactive. Several may attach.
///
/// The detach keys leave it running; so does Ctrl-C, unless it has a terminal, which gets it.
#[derive(Args, Clone, Debug)]
pub struct Attach {
    #[command(flatten)]
    #[doc(hidden)]
    pub place: Where,

    /// Keys that leave the process, on a terminal.
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    pub detach_keys: DetachKeys,

    /// Shows only; nothing that is typed goes to the process.
    #[arg(long)]
    pub no_stdin: bool,

    /// The id that `run --detach` printed, or a beginning of it.
    pub id: String,
}

impl Attach {
    /// Follows a detached process and types into its terminal.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::open(&self.place).await?;
        let client = &place.client;
        let found = telling(client, detached::find_one(client, &self.id)).await?;
        let id = found.process_id.clone();
        if !found.running {
            return Ok(ended(&place, &found));
        }
        let now = telling(client, detached::now(client, &id)).await?;
        let after = OutputSeq(now.next_seq.0.saturating_sub(1));
        if now.exited {
            let exit_code = now.exit_code;
            return Ok(ended(&place, &ProcessSummary { exit_code, ..found }));
        }
        let process = telling(client, client.attach(id.clone(), Some(after))).await;
        let process = process.map_err(call_failed)?;
        let failed = |error| Failure::new(FailureKind::Failed, error);
        let input = match self.no_stdin {
            true => None,
            false => Input::open().map_err(failed)?,
        };
        let terminal = match found.tty {
            true => Terminal::Theirs,
            false => Terminal::None,
        };
        if found.tty {
            repaint(&*process);
        }
        let talk = Talk {
            client: client.clone(),
            process: Arc::clone(&process),
            signals: Signals::listen().map_err(failed)?,
            after,
            owner: Owner::Server,
            input,
            terminal,
            // What is piped in holds no keys.
            keys: (found.tty && Standard::Input.is_terminal()).then_some(self.detach_keys),
            limit: None,
        };
        let end = talk.run().await.map_err(failed)?;
        end.status(Owner::Server, &id, &place)
    }
}

/// Lets a program draw its screen again, in our size. It only does so when the size changes.
fn repaint(process: &dyn ExecProcess) {
    let Some(size) = terminal::size() else {
        return;
    };
    let rows = match size.rows {
        1 => 2,
        rows => rows - 1,
    };
    // The requests are sent by asking, in this order.
    drop(process.resize(TerminalSize { rows, ..size }));
    drop(process.resize(size));
}

fn ended(place: &Place, process: &ProcessSummary) -> ExitCode {
    let id = &process.process_id;
    let logs = place.line("logs", &[id.as_str()]);
    complain(&format!("`{id}` has ended; `{logs}` prints what it wrote"));
    ExitCode::from(process.exit_code.map_or(1, byte))
}
