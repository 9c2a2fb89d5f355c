//! `exec-server kill`.

use std::{process::ExitCode, str::FromStr, time::Duration};

use clap::Args;
use exec_client::client::ExecServerClient;
use exec_wire::{
    id::ProcessId,
    process::{
        ProcessSignal, SignalProcess, TerminateMode, TerminateProcess, WaitProcess, WaitUntil,
    },
};
use futures_util::future::try_join_all;

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    detached::{self, call_failure},
    failure::{CommandFailure, FailureKind},
    process_session::show_outages,
    quantity::DurationArg,
};

/// Ends a detached process, or signals it.
///
/// Without a signal, the whole process tree receives SIGTERM, and SIGKILL after the grace period;
/// the command waits for the exit. A signal goes to the process group, and nothing is waited for.
#[derive(Args, Clone, Debug)]
pub struct KillCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Sends this signal instead: INT, TERM, KILL, HUP, QUIT, STOP, CONT, USR1 or USR2.
    #[arg(short, long, value_name = "SIGNAL")]
    pub signal: Option<NamedSignal>,

    /// Time between SIGTERM and SIGKILL.
    #[arg(
        long,
        value_name = "SPAN",
        default_value = "10s",
        conflicts_with = "signal"
    )]
    pub timeout: DurationArg,

    /// Ids that `run --detach` printed, or unique prefixes of them.
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
}

/// Signal by name or number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NamedSignal(ProcessSignal);

impl FromStr for NamedSignal {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.to_ascii_uppercase();
        let signal = match name.strip_prefix("SIG").unwrap_or(&name) {
            "HUP" | "1" => ProcessSignal::Hangup,
            "INT" | "2" => ProcessSignal::Interrupt,
            "QUIT" | "3" => ProcessSignal::Quit,
            "KILL" | "9" => ProcessSignal::Kill,
            "USR1" => ProcessSignal::User1,
            "USR2" => ProcessSignal::User2,
            "TERM" | "15" => ProcessSignal::Terminate,
            "CONT" => ProcessSignal::Continue,
            "STOP" => ProcessSignal::Stop,
            _ => return Err("expected INT, TERM, KILL, HUP, QUIT, STOP, CONT, USR1 or USR2"),
        };
        Ok(Self(signal))
    }
}

impl KillCommand {
    /// Terminates or signals the processes.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        let client = &env.client;
        show_outages(client, async {
            // Look up all processes before changing any.
            let found = detached::find(client, &self.ids).await?;
            let ids = found.into_iter().map(|process| process.process_id);
            match self.signal {
                Some(NamedSignal(signal)) => {
                    try_join_all(ids.map(|id| send(client, id, signal))).await
                }
                None => try_join_all(ids.map(|id| end(client, id, self.timeout))).await,
            }
        })
        .await?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn send(
    client: &ExecServerClient,
    process_id: ProcessId,
    signal: ProcessSignal,
) -> Result<(), CommandFailure> {
    let sent = client.call(SignalProcess { process_id, signal });
    sent.await.map(drop).map_err(call_failure)
}

async fn end(
    client: &ExecServerClient,
    id: ProcessId,
    grace: DurationArg,
) -> Result<(), CommandFailure> {
    let asked = client.call(TerminateProcess {
        process_id: id.clone(),
        mode: Some(TerminateMode::Graceful {
            timeout_ms: grace.millis(),
        }),
    });
    asked.await.map_err(call_failure)?;
    let ended = client.call(WaitProcess {
        process_id: id.clone(),
        until: WaitUntil::Exited,
        timeout_ms: Some(DurationArg(grace.0 + KILL_GRACE).millis()),
    });
    match ended.await.map_err(call_failure)? {
        ended if ended.exited => Ok(()),
        _ => {
            let what = format!("`{id}` was killed but has not exited yet");
            Err(CommandFailure::new(FailureKind::TimedOut, what)
                .next("it may be blocked on a disk; `exec-server ps` shows it"))
        }
    }
}

/// How long a killed process may take to exit.
const KILL_GRACE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_names_and_numbers_are_parsed() {
        for text in ["KILL", "sigkill", "SIGKILL", "9"] {
            assert_eq!(text.parse(), Ok(NamedSignal(ProcessSignal::Kill)), "{text}");
        }
        for wrong in ["", "SIG", "64", "SEGV"] {
            assert!(wrong.parse::<NamedSignal>().is_err(), "{wrong}");
        }
    }
}
