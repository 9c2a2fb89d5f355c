//! `exec-server history`.

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use exec_client::client::ExecServerClient;
use exec_wire::process::{ProcessSummary, PurgeHistory};

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    detached::{self, call_failure, select_process, still_running},
    failure::{CommandFailure, FailureKind},
    print::json,
    process_session::{show_outages, write_result},
    ps::{TableStyle, bytes, command_line, escaped, rounded, state},
};

/// Lists durable processes: what ran, when, how it ended and how much it wrote.
///
/// The oldest is first. `logs` and `replay` show the output. A server keeps ended processes for
/// seven days, and fewer if they exceed its --state-bytes.
#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("env", |arg| arg.global(true)),
    mut_arg("token_file", |arg| arg.global(true))
)]
pub struct HistoryCommand {
    /// Subcommand.
    #[command(subcommand)]
    pub(crate) command: Option<HistorySubcommand>,

    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Lists only the newest processes.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,

    /// Prints one JSON array.
    #[arg(long)]
    pub json: bool,
}

/// Subcommands of `history`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum HistorySubcommand {
    /// Removes ended processes and their output from the disk.
    Purge(HistoryPurgeCommand),
}

/// Removes ended processes and their output from the disk.
///
/// Prints how many were removed. Running processes stay.
#[derive(Args, Clone, Debug)]
pub(crate) struct HistoryPurgeCommand {
    /// Removes all ended processes.
    #[arg(long, conflicts_with = "ids")]
    pub(crate) all: bool,

    /// Ids that `history` lists, or unique prefixes of them.
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

impl HistoryCommand {
    /// Lists the processes, or removes some.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        if let Some(HistorySubcommand::Purge(purge)) = self.command {
            return purge.run(&self.env_args).await;
        }
        let env = ConnectedEnv::open(&self.env_args).await?;
        let mut processes = show_outages(&env.client, recorded(&env)).await?;
        if let Some(limit) = self.limit {
            processes.drain(..processes.len().saturating_sub(limit));
        }
        if self.json {
            return write_result(&json(&processes)?);
        }
        let style = TableStyle::of_output();
        let rows = processes.iter().map(|process| row(process, style.now));
        write_result(&style.table(HEAD, rows.collect()))
    }
}

const HEAD: [&str; 7] = ["ID", "STATE", "STARTED", "TOOK", "OUTPUT", "TTY", "COMMAND"];

fn row(process: &ProcessSummary, now: Duration) -> [String; 7] {
    let started = Duration::from_millis(process.started_at_ms);
    let ended = match process.running {
        true => Some(now),
        false => process.ended_at_ms.map(Duration::from_millis),
    };
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        escaped(process.process_id.as_str()),
        state(process),
        format!("{} ago", rounded(now.saturating_sub(started))),
        or_dash(ended.map(|ended| rounded(ended.saturating_sub(started)))),
        or_dash(process.output_bytes.map(bytes)),
        or_dash(process.tty.then(|| "yes".to_owned())),
        command_line(process),
    ]
}

impl HistoryPurgeCommand {
    async fn run(self, env_args: &EnvArgs) -> Result<ExitCode, CommandFailure> {
        if self.ids.is_empty() && !self.all {
            let what = "nothing selected to remove";
            return Err(CommandFailure::usage(what)
                .next("name processes that `exec-server history` lists, or pass --all"));
        }
        let env = ConnectedEnv::open(env_args).await?;
        let removed = show_outages(&env.client, self.purge(&env)).await?;
        write_result(&match removed {
            1 => "removed 1 process\n".to_owned(),
            _ => format!("removed {removed} processes\n"),
        })
    }

    async fn purge(&self, env: &ConnectedEnv) -> Result<usize, CommandFailure> {
        let recorded = recorded(env).await?;
        if self.all {
            return purge(&env.client, PurgeHistory::default()).await;
        }
        // Check all of them before removing any. Several may have had the same id in turn.
        let mut by_id = recorded;
        by_id.sort_by(|left, right| left.process_id.cmp(&right.process_id));
        by_id.dedup_by(|later, earlier| {
            let is_same = later.process_id == earlier.process_id;
            earlier.running |= is_same && later.running;
            is_same
        });
        let mut selected = Vec::new();
        for typed in &self.ids {
            let found =
                select_process(&by_id, typed).map_err(|failure| unrecorded(failure, typed))?;
            if found.running {
                return Err(still_running(env, &found.process_id));
            }
            selected.push(found.process_id);
        }
        let mut removed = 0;
        for id in selected {
            let process_id = Some(id);
            removed += purge(
                &env.client,
                PurgeHistory {
                    process_id,
                    ..PurgeHistory::default()
                },
            )
            .await?;
        }
        Ok(removed)
    }
}

fn unrecorded(failure: CommandFailure, typed: &str) -> CommandFailure {
    if failure.kind != FailureKind::NotFound {
        return failure;
    }
    let what = format!("no recorded process `{}`", typed.escape_default());
    CommandFailure::new(FailureKind::NotFound, what)
        .next("`exec-server history` with the same --env lists them")
}

async fn purge(client: &ExecServerClient, purge: PurgeHistory) -> Result<usize, CommandFailure> {
    let purged = client.call(purge).await.map_err(call_failure)?;
    Ok(purged.purged)
}

/// Lists the recorded processes, or explains why nothing is recorded.
async fn recorded(env: &ConnectedEnv) -> Result<Vec<ProcessSummary>, CommandFailure> {
    if let Some(recorded) = detached::history(&env.client).await? {
        return Ok(recorded);
    }
    let what = format!("the server of `{}` keeps no history", env.name);
    let failure = CommandFailure::failed(what);
    Err(match env.is_this_machine {
        true => failure.next("`exec-server doctor` tells why its state directory cannot be used"),
        false => failure.next("start it with --state-dir DIR, and --durable detached or all"),
    })
}

#[cfg(test)]
mod tests {
    use exec_wire::{id::ProcessId, path_uri::PathUri, process::ProcessState};

    use super::*;

    #[test]
    fn rows_show_how_a_process_ended_and_how_long_it_took() {
        let process = ProcessSummary {
            process_id: ProcessId::new("one").unwrap(),
            argv: vec!["true".to_owned()],
            cwd: PathUri::parse("file:///").unwrap(),
            tty: false,
            running: false,
            exit_code: Some(3),
            started_at_ms: 10_000,
            os_pid: None,
            detached: true,
            usage: None,
            owner: None,
            state: Some(ProcessState::Exited),
            output_bytes: Some(3 << 20),
            durable: Some(true),
            ended_at_ms: Some(75_000),
            size: None,
        };
        let now = Duration::from_secs(200);
        let cells = ["one", "ended 3", "3m ago", "1m", "3M", "-", "true"];
        assert_eq!(row(&process, now), cells.map(str::to_owned));
        let lost = ProcessSummary {
            state: Some(ProcessState::Lost),
            exit_code: Some(-1),
            ended_at_ms: None,
            ..process.clone()
        };
        assert_eq!(row(&lost, now)[1..4], ["lost", "3m ago", "-"]);
        let running = ProcessSummary {
            running: true,
            exit_code: None,
            ended_at_ms: None,
            ..process
        };
        assert_eq!(row(&running, now)[1..4], ["running", "3m ago", "3m"]);
    }
}
