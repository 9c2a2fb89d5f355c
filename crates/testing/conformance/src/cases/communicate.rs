//! `communicate`: writes all input and collects all output.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_env::{
    environment::Command,
    process::{CommunicateOptions, CommunicateOutput, ExecProcess},
};
use exec_wire::process::TerminateMode;

use crate::{
    bounded_wait::within,
    difference::Difference,
    pattern,
    scratch_dir::ScratchDir,
    subject::{Subject, on_terminal, piped},
};

/// More than all buffers between the client and the child's stdin hold together.
const BYTES: usize = 8 << 20;
/// Output caps that keep everything.
const ALL: CommunicateOptions = CommunicateOptions {
    max_bytes: 3 * BYTES,
    time_limit: None,
};

async fn start(subject: &Subject, command: Command) -> Arc<dyn ExecProcess> {
    let started = within("command starts", subject.backend.start(command)).await;
    started.expect("command failed to start").process
}

async fn communicate(
    process: &Arc<dyn ExecProcess>,
    input: impl Into<Bytes>,
    communicate: CommunicateOptions,
) -> CommunicateOutput {
    let communicated = process.communicate(input.into(), communicate);
    within("call completes", communicated).await.unwrap()
}

fn code(communicated: &CommunicateOutput) -> Option<i32> {
    communicated.exit.as_ref().map(|exit| exit.code)
}

pub async fn communicate_passes_eight_mebibytes_through_cat(subject: &Subject) {
    let cat = start(subject, subject.cat(BYTES)).await;
    let communicated = communicate(&cat, pattern::bytes(BYTES), ALL).await;
    pattern::assert_same(&communicated.stdout.data, &pattern::bytes(BYTES));
    assert_eq!(code(&communicated), Some(0));
    assert!(communicated.closed && !communicated.truncated() && !communicated.running());
}

pub async fn communicate_does_not_deadlock_if_the_child_writes_first(subject: &Subject) {
    let script = if subject.differs(Difference::NoCloseStdin) {
        r#""$1" emit "$2"; exec "$1" copy "$2" >&2"#
    } else {
        r#""$1" emit "$2"; exec cat >&2"#
    };
    let arguments = [subject.probe_path(), &BYTES.to_string()];
    let child = start(subject, piped(subject.sh(script, &arguments))).await;
    let communicated = communicate(&child, pattern::bytes(BYTES), ALL).await;
    pattern::assert_same(&communicated.stdout.data, &pattern::bytes(BYTES));
    pattern::assert_same(&communicated.stderr.data, &pattern::bytes(BYTES));
}

pub async fn communicate_works_if_the_child_never_reads(subject: &Subject) {
    let child = start(subject, piped(subject.sh("echo done; exit 3", &[]))).await;
    let communicated = communicate(&child, pattern::bytes(BYTES), ALL).await;
    assert_eq!(communicated.stdout.data, b"done\n");
    assert_eq!(code(&communicated), Some(3));
}

pub async fn communicate_works_if_the_child_closes_stdin_early(subject: &Subject) {
    let script = "read line; exec <&-; echo \"<$line>\"";
    let child = start(subject, piped(subject.sh(script, &[]))).await;
    let communicated = communicate(&child, pattern::bytes(BYTES), ALL).await;
    assert_eq!(communicated.stdout.data, b"<000000000000000>\n");
    assert_eq!(code(&communicated), Some(0));
}

pub async fn communicate_works_without_input(subject: &Subject) {
    let child = start(subject, subject.sh("cat; echo out; echo err >&2", &[])).await;
    let communicated = communicate(
        &child,
        "write finished although the FIFO has no reader",
        ALL,
    )
    .await;
    assert_eq!(communicated.stdout.data, b"out\n");
    assert_eq!(communicated.stderr.data, b"err\n");
}

pub async fn communicate_works_on_a_terminal(subject: &Subject) {
    let script = "stty -echo; read line; echo \"<$line>\"; cat";
    let script = if subject.differs(Difference::NoCloseStdin) {
        "stty -echo; read line; echo \"<$line>\"; read line; echo \"$line\""
    } else {
        script
    };
    let command = on_terminal(subject.sh(script, &[]), 24, 80);
    let child = start(subject, command).await;
    let communicated = communicate(&child, "first\nsecond\n", ALL).await;
    let shown = String::from_utf8(communicated.terminal.data.clone()).unwrap();
    assert!(shown.contains("<first>"), "{shown:?}");
    assert!(shown.ends_with("second\r\n"), "{shown:?}");
    assert_eq!(
        (communicated.stdout.data.len(), code(&communicated)),
        (0, Some(0))
    );
}

pub async fn communicate_keeps_head_and_tail_up_to_the_cap(subject: &Subject) {
    const KEPT: usize = 1000;
    let child = start(subject, subject.probe(&["emit", &BYTES.to_string()])).await;
    let cap = CommunicateOptions {
        max_bytes: KEPT,
        ..ALL
    };
    let communicated = communicate(&child, "", cap).await;
    let (stdout, all) = (&communicated.stdout, pattern::bytes(BYTES));
    assert_eq!(stdout.omitted, (BYTES - KEPT) as u64);
    assert!(communicated.truncated());
    pattern::assert_same(&stdout.data[..KEPT / 2], &all[..KEPT / 2]);
    pattern::assert_same(&stdout.data[KEPT / 2..], &all[BYTES - KEPT / 2..]);
}

pub async fn communicate_times_out(subject: &Subject) {
    let scratch = ScratchDir::new();
    let gate = scratch.gate();
    let script = r#"echo waiting; read line <"$1""#;
    let child = start(subject, subject.sh(script, &[gate.path()])).await;
    let short = CommunicateOptions {
        time_limit: Some(Duration::from_millis(500)),
        ..ALL
    };
    let communicated = communicate(&child, "", short).await;
    assert!(communicated.running() && !communicated.closed);
    // The process keeps running and its output is still readable.
    gate.open();
    let communicated = communicate(&child, "", ALL).await;
    assert_eq!(communicated.stdout.data, b"waiting\n");
    assert!(communicated.closed);
}

pub async fn communicate_reports_a_concurrent_terminate(subject: &Subject) {
    let child = start(subject, piped(subject.command(&["sleep", "1000"]))).await;
    let communicating = child.communicate(Bytes::from(pattern::bytes(BYTES)), ALL);
    let terminated = child.terminate(TerminateMode::Force);
    let (communicated, terminated) = within("call completes", async {
        futures_util::future::join(communicating, terminated).await
    })
    .await;
    assert_eq!(terminated, Ok(true));
    assert_eq!(code(&communicated.unwrap()), Some(137));
}
