//! Detached processes: `exec-server kill`, `exec-server wait`, and lookup by what the user types.

use std::{collections::BTreeMap, process::ExitCode, str::FromStr, time::Duration};

use clap::Args;
use exec_client::{client::ExecServerClient, error::ExecServerError};
use exec_wire::{
    error::ErrorCode,
    id::{OutputSeq, ProcessId},
    process::{
        AttachProcess, ExitCause, ListHistory, OutputPage, ProcessSignal, ProcessSummary,
        ReadProcess, ReleaseProcess, SignalProcess, TerminateMode, TerminateProcess, WaitProcess,
        WaitUntil,
    },
};
use futures_util::future::try_join_all;
use tokio::time::Instant;

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    failure::{CommandFailure, FailureKind},
    process_session::{exit_byte, show_outages, timed_out},
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
            let found = find(client, &self.ids).await?;
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
    let terminated = client.call(TerminateProcess {
        process_id: id.clone(),
        mode: Some(TerminateMode::Graceful {
            timeout_ms: grace.millis(),
        }),
    });
    terminated.await.map_err(call_failure)?;
    let waited = client.call(WaitProcess {
        process_id: id.clone(),
        until: WaitUntil::Exited,
        timeout_ms: Some(DurationArg(grace.0 + KILL_GRACE).millis()),
    });
    match waited.await.map_err(call_failure)? {
        waited if waited.exited => Ok(()),
        _ => {
            let what = format!("`{id}` was killed but has not exited yet");
            Err(CommandFailure::new(FailureKind::TimedOut, what)
                .next("it may be blocked on a disk; `exec-server ps` shows it"))
        }
    }
}

/// How long a killed process may take to exit.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Waits for a detached process and exits with its status.
///
/// With several, waits for all of them; the status is that of the last one named.
#[derive(Args, Clone, Debug)]
pub struct WaitCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Maximum total wait; the status is 124 then, and the processes keep running.
    #[arg(long, value_name = "SPAN")]
    pub timeout: Option<DurationArg>,

    /// Ids that `run --detach` printed, or unique prefixes of them.
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
}

impl WaitCommand {
    /// Waits for the processes and returns the status of the last one.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        let deadline = self
            .timeout
            .map(|DurationArg(limit)| Instant::now() + limit);
        let client = &env.client;
        show_outages(client, async {
            let mut status = ExitCode::SUCCESS;
            for process in find(client, &self.ids).await? {
                let remaining =
                    deadline.map(|end| DurationArg(end.saturating_duration_since(Instant::now())));
                let ended = client.call(WaitProcess {
                    process_id: process.process_id.clone(),
                    until: WaitUntil::Exited,
                    timeout_ms: remaining.map(DurationArg::millis),
                });
                let ended = ended.await.map_err(call_failure)?;
                if !ended.exited {
                    let id = &process.process_id;
                    let what = format!("`{id}` did not exit in time and keeps running");
                    let kill = env.line("kill", &[id.as_str()]);
                    return Err(CommandFailure::new(FailureKind::TimedOut, what)
                        .next(format_args!("`{kill}` ends it")));
                }
                let now = output_position(client, &process.process_id).await?;
                if now.cause == Some(ExitCause::WallLimit) {
                    return Err(timed_out());
                }
                status = ExitCode::from(ended.exit_code.map_or(1, exit_byte));
            }
            Ok(status)
        })
        .await
    }
}

/// Lists all detached processes.
pub(crate) async fn list(client: &ExecServerClient) -> Result<Vec<ProcessSummary>, CommandFailure> {
    let mut processes = client.processes().await.map_err(call_failure)?;
    processes.retain(|process| process.detached);
    Ok(processes)
}

/// Finds a process for each text: its id, or a unique prefix of it.
pub(crate) async fn find(
    client: &ExecServerClient,
    typed: &[String],
) -> Result<Vec<ProcessSummary>, CommandFailure> {
    let processes = list(client).await?;
    typed
        .iter()
        .map(|typed| select_process(&processes, typed))
        .collect()
}

/// Lists every process that can be attached to, including those of other sessions.
pub(crate) async fn list_all(
    client: &ExecServerClient,
) -> Result<Vec<ProcessSummary>, CommandFailure> {
    client.all_processes().await.map_err(call_failure)
}

/// Lists every recorded process, running or ended, oldest first. `None`: the server records none.
pub(crate) async fn history(
    client: &ExecServerClient,
) -> Result<Option<Vec<ProcessSummary>>, CommandFailure> {
    match client.call(ListHistory {}).await {
        Ok(list) => Ok(Some(list.processes)),
        Err(ExecServerError::Remote(error))
            if matches!(
                error.code,
                ErrorCode::INVALID_REQUEST | ErrorCode::METHOD_NOT_FOUND
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(call_failure(error)),
    }
}

/// Lists every process that can be attached to, and every recorded one.
pub(crate) async fn list_all_recorded(
    client: &ExecServerClient,
) -> Result<Vec<ProcessSummary>, CommandFailure> {
    let mut processes = list_all(client).await?;
    for recorded in history(client).await?.unwrap_or_default() {
        if !recorded.running && !processes.iter().any(|listed| is_same(listed, &recorded)) {
            processes.push(recorded);
        }
    }
    processes.sort_by(|left, right| {
        let key = |process: &ProcessSummary| (process.process_id.clone(), process.started_at_ms);
        key(left).cmp(&key(right))
    });
    Ok(processes)
}

fn is_same(left: &ProcessSummary, right: &ProcessSummary) -> bool {
    left.process_id == right.process_id && left.started_at_ms == right.started_at_ms
}

/// Finds one process with readable output: a detached one, else the newest ended one of the
/// history, which the server then opens.
pub(crate) async fn find_readable(
    client: &ExecServerClient,
    typed: &str,
) -> Result<ProcessSummary, CommandFailure> {
    let unknown = match select_process(&list(client).await?, typed) {
        Err(failure) if failure.kind == FailureKind::NotFound => failure,
        selected => return selected,
    };
    let Some(recorded) = history(client).await? else {
        return Err(unknown);
    };
    let ended = recorded.into_iter().filter(|process| !process.running);
    let newest: BTreeMap<_, _> = ended
        .map(|process| (process.process_id.clone(), process))
        .collect();
    let newest: Vec<_> = newest.into_values().collect();
    let found = select_process(&newest, typed)?;
    let open = client.call(AttachProcess {
        process_id: found.process_id.clone(),
        after_seq: Some(LAST),
        started_at_ms: Some(found.started_at_ms),
    });
    open.await.map_err(call_failure)?;
    Ok(found)
}

/// Adds what only the history knows of a process: its end and its terminal size.
pub(crate) async fn add_recorded_facts(
    client: &ExecServerClient,
    process: ProcessSummary,
) -> Result<ProcessSummary, CommandFailure> {
    let recorded = history(client).await?.unwrap_or_default();
    let recorded = recorded.into_iter().find(|one| is_same(one, &process));
    Ok(recorded.unwrap_or(process))
}

/// Finds one process: a detached one, else one of another session.
pub(crate) async fn find_attachable(
    client: &ExecServerClient,
    typed: &str,
) -> Result<ProcessSummary, CommandFailure> {
    let processes = list_all(client).await?;
    let (detached, others): (Vec<_>, Vec<_>) =
        processes.into_iter().partition(|process| process.detached);
    match select_process(&detached, typed) {
        Err(failure) if failure.kind == FailureKind::NotFound => select_process(&others, typed),
        selected => selected,
    }
}

/// Lets the server take over a process of another session, so that it outlives that session.
pub(crate) async fn adopt_process(
    client: &ExecServerClient,
    process: &ProcessSummary,
) -> Result<(), CommandFailure> {
    let process_id = process.process_id.clone();
    let attach = AttachProcess {
        process_id: process_id.clone(),
        after_seq: Some(LAST),
        started_at_ms: Some(process.started_at_ms),
    };
    client.call(attach).await.map_err(call_failure)?;
    let release = client.call(ReleaseProcess {
        process_id,
        forget: false,
    });
    release.await.map(drop).map_err(call_failure)
}

/// Returns the end of the output so far, and how the process exited.
pub(crate) async fn output_position(
    client: &ExecServerClient,
    id: &ProcessId,
) -> Result<OutputPage, CommandFailure> {
    let now = client.call(ReadProcess {
        process_id: id.clone(),
        after_seq: Some(LAST),
        max_bytes: None,
        wait_ms: None,
        times: false,
    });
    now.await.map_err(call_failure)
}

/// Beyond any sequence number: nothing is replayed after it.
const LAST: OutputSeq = OutputSeq(u64::MAX - 1);

/// Selects the process with this id, or the only one with this id prefix.
pub(crate) fn select_process(
    processes: &[ProcessSummary],
    typed: &str,
) -> Result<ProcessSummary, CommandFailure> {
    let id = |process: &ProcessSummary| process.process_id.as_str().to_owned();
    let exact: Vec<_> = processes
        .iter()
        .filter(|process| id(process) == typed)
        .collect();
    match exact[..] {
        [] => {}
        [one] => return Ok(one.clone()),
        // Ids are unique only within a session.
        [..] => {
            let what = format!(
                "several sessions have a process `{}`",
                typed.escape_default()
            );
            return Err(CommandFailure::usage(what)
                .next("stop the others, or wait until their sessions have ended"));
        }
    }
    let begins = |process: &&ProcessSummary| !typed.is_empty() && id(process).starts_with(typed);
    let found: Vec<_> = processes.iter().filter(begins).collect();
    let typed = typed.escape_default();
    match found[..] {
        [one] => Ok(one.clone()),
        [] => Err(unknown_process(&typed.to_string())),
        [one, other, ..] => {
            let what = format!("`{typed}` is ambiguous: `{}` or `{}`", id(one), id(other));
            Err(CommandFailure::usage(what).next("type more of the id"))
        }
    }
}

fn unknown_process(id: &str) -> CommandFailure {
    let what = format!("no detached process `{id}`");
    CommandFailure::new(FailureKind::NotFound, what).next(
        "`exec-server ps` with the same --env lists them, and `ps --all` those of other \
         sessions; exited processes are removed after a while",
    )
}

/// Refuses to remove a process that runs.
pub(crate) fn still_running(env: &ConnectedEnv, id: &ProcessId) -> CommandFailure {
    let kill = env.line("kill", &[id.as_str()]);
    CommandFailure::failed(format!("`{id}` is still running"))
        .next(format_args!("`{kill}` ends it"))
}

/// Converts the error of a call into a message for the user.
pub(crate) fn call_failure(error: ExecServerError) -> CommandFailure {
    if let ExecServerError::UnknownProcess(id) = &error {
        return unknown_process(id.as_str());
    }
    if let ExecServerError::Remote(error) = &error {
        return match error.message.strip_prefix("unknown process id ") {
            Some(id) => unknown_process(id),
            None => CommandFailure::failed(&error.message),
        };
    }
    let failure = CommandFailure::from(error);
    if failure.kind == FailureKind::Lost {
        return failure.next("detached processes keep running as long as the server does");
    }
    failure
}

#[cfg(test)]
mod tests {
    use exec_wire::{id::ProcessId, path_uri::PathUri};

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

    fn process(id: &str) -> ProcessSummary {
        ProcessSummary {
            process_id: ProcessId::new(id).unwrap(),
            argv: vec!["true".to_owned()],
            cwd: PathUri::parse("file:///").unwrap(),
            tty: false,
            running: true,
            exit_code: None,
            started_at_ms: 0,
            os_pid: None,
            detached: true,
            usage: None,
            owner: None,
            state: None,
            output_bytes: None,
            durable: None,
            ended_at_ms: None,
            size: None,
        }
    }

    #[test]
    fn unique_prefix_or_full_id_selects_a_process() {
        let processes = ["build", "build-2", "serve"].map(process);
        let select_id =
            |typed| select_process(&processes, typed).map(|process| process.process_id.to_string());
        assert_eq!(select_id("s"), Ok("serve".to_owned()));
        assert_eq!(select_id("build"), Ok("build".to_owned()));
        assert_eq!(select_id("b").unwrap_err().kind, FailureKind::Usage);
        for wrong in ["", "x", "serve-"] {
            let failure = select_id(wrong).unwrap_err();
            assert_eq!(failure.kind, FailureKind::NotFound, "{wrong}");
            assert!(failure.to_string().contains("exec-server ps"));
        }
    }
}
