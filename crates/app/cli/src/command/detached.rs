//! Looks up detached processes by what the user types.

use exec_client::{client::ExecServerClient, error::ExecServerError};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    process::{AttachProcess, OutputPage, ProcessSummary, ReadProcess, ReleaseProcess},
};

use super::failure::{CommandFailure, FailureKind};

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
        picked => picked,
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

/// Finds one process.
pub(crate) async fn find_one(
    client: &ExecServerClient,
    typed: &str,
) -> Result<ProcessSummary, CommandFailure> {
    select_process(&list(client).await?, typed)
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
    });
    now.await.map_err(call_failure)
}

/// Beyond any sequence number: nothing is replayed after it.
const LAST: OutputSeq = OutputSeq(u64::MAX - 1);

fn select_process(
    processes: &[ProcessSummary],
    typed: &str,
) -> Result<ProcessSummary, CommandFailure> {
    let id = |process: &ProcessSummary| process.process_id.as_str().to_owned();
    let path_bytes: Vec<_> = processes
        .iter()
        .filter(|process| id(process) == typed)
        .collect();
    match path_bytes[..] {
        [] => {}
        [one] => return Ok(one.clone()),
        // Ids are unique only within a session.
        [..] => {
            let what = format!(
                "several sessions have a process `{}`",
                typed.escape_default()
            );
            return Err(CommandFailure::new(FailureKind::Usage, what)
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
            Err(CommandFailure::new(FailureKind::Usage, what).next("type more of the id"))
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

/// Converts the error of a call into a message for the user.
pub(crate) fn call_failure(error: ExecServerError) -> CommandFailure {
    if let ExecServerError::UnknownProcess(id) = &error {
        return unknown_process(id.as_str());
    }
    if let ExecServerError::Remote(error) = &error {
        return match error.message.strip_prefix("unknown process id ") {
            Some(id) => unknown_process(id),
            None => CommandFailure::new(FailureKind::Failed, &error.message),
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
        }
    }

    #[test]
    fn unique_prefix_or_full_id_selects_a_process() {
        let processes = ["build", "build-2", "serve"].map(process);
        let picked =
            |typed| select_process(&processes, typed).map(|process| process.process_id.to_string());
        assert_eq!(picked("s"), Ok("serve".to_owned()));
        assert_eq!(picked("build"), Ok("build".to_owned()));
        assert_eq!(picked("b").unwrap_err().kind, FailureKind::Usage);
        for wrong in ["", "x", "serve-"] {
            let failure = picked(wrong).unwrap_err();
            assert_eq!(failure.kind, FailureKind::NotFound, "{wrong}");
            assert!(failure.to_string().contains("exec-server ps"));
        }
    }
}
