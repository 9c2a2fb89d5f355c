//! Exit and close events, and waiting for them.

use std::time::Duration;

use exec_env::process::ExecProcessEvent as Event;
use exec_wire::process::{ExitCause, WaitUntil};

use crate::{
    bounded_wait::within,
    difference::Difference,
    scratch_dir::ScratchDir,
    subject::{Subject, piped},
};

pub async fn exit_code_is_reported(subject: &Subject) {
    for code in [0, 7, 255] {
        let told = subject
            .start(subject.sh("exit $1", &[&code.to_string()]))
            .await
            .finish()
            .await;
        let exit = told.exit().unwrap();
        subject.assert_end(&exit, code, None, ExitCause::Exit);
    }
}

pub async fn signal_death_reports_number_and_name(subject: &Subject) {
    for (signal, code, name) in [
        ("KILL", 137, "SIGKILL"),
        ("TERM", 143, "SIGTERM"),
        ("SEGV", 139, "SIGSEGV"),
    ] {
        let told = subject
            .start(subject.sh("kill -$1 $$", &[signal]))
            .await
            .finish()
            .await;
        let exit = told.exit().unwrap();
        subject.assert_end(&exit, code, Some(name), ExitCause::Signal);
    }
}

pub async fn resource_usage_is_reported_with_the_exit(subject: &Subject) {
    let told = subject
        .start(subject.sh("exit 0", &[]))
        .await
        .finish()
        .await;
    let usage = told.exit().unwrap().usage;
    if subject.differs(Difference::BareExits) {
        return assert_eq!(usage, None);
    }
    let usage = usage.expect("exit carries no resource usage");
    assert!(usage.max_rss_bytes > 0);
}

pub async fn sequence_numbers_start_at_one_and_close_is_last(subject: &Subject) {
    let script = "for i in 1 2 3 4 5; do echo $i; echo $i >&2; done; exit 3";
    let told = subject.start(subject.sh(script, &[])).await.finish().await;
    let numbers: Vec<u64> = told
        .0
        .iter()
        .map(|event| event.seq().expect("process failed").0)
        .collect();
    assert_eq!(numbers, (1..=told.0.len() as u64).collect::<Vec<_>>());
    assert!(matches!(told.0.last(), Some(Event::Closed(_))));
}

pub async fn exited_and_closed_are_sent_exactly_once(subject: &Subject) {
    let told = subject
        .start(subject.sh("echo a; (echo b) & wait", &[]))
        .await
        .finish()
        .await;
    let exits = told
        .0
        .iter()
        .filter(|event| matches!(event, Event::Exited(..)))
        .count();
    let closes = told
        .0
        .iter()
        .filter(|event| matches!(event, Event::Closed(_)))
        .count();
    assert_eq!((exits, closes), (1, 1));
}

pub async fn descendant_output_after_exit_precedes_close(subject: &Subject) {
    let scratch = ScratchDir::new();
    let gate = scratch.gate();
    let script = r#"(read line <"$1"; echo late) & echo now"#;
    let mut running = subject.start(subject.sh(script, &[gate.path()])).await;
    assert_eq!(running.exit().await.code, 0);
    assert!(
        !running.process.status().closed,
        "a descendant holds the output"
    );
    gate.open();
    let told = running.finish().await;
    assert_eq!(told.text(), "now\nlate\n");
}

pub async fn exited_and_closed_can_be_awaited_separately(subject: &Subject) {
    let scratch = ScratchDir::new();
    let gate = scratch.gate();
    let script = r#"(read line <"$1") & exit 8"#;
    let running = subject.start(subject.sh(script, &[gate.path()])).await;
    let exited = within(
        "process exits",
        running.process.wait(WaitUntil::Exited, None),
    )
    .await
    .unwrap();
    assert_eq!(exited.exit.map(|exit| exit.code), Some(8));
    assert!(!exited.closed, "a descendant holds the output");
    let closed = running.process.wait(WaitUntil::Closed, None);
    gate.open();
    let closed = within("process closes", closed).await.unwrap();
    assert!(closed.closed);
    // Exit and close take sequence numbers; there is no output.
    assert_eq!(closed.next_seq.0, 3);
}

pub async fn wait_times_out(subject: &Subject) {
    let running = subject.start(piped(subject.command(&["cat"]))).await;
    for until in [WaitUntil::Exited, WaitUntil::Closed] {
        let wait = running.process.wait(until, Some(Duration::from_millis(20)));
        let status = within("wait times out", wait).await.unwrap();
        assert_eq!((status.exit, status.closed), (None, false));
    }
}

pub async fn wait_after_exit_returns_immediately(subject: &Subject) {
    let running = subject.start(subject.sh("exit 1", &[])).await;
    let process = running.process.clone();
    running.finish().await;
    for until in [WaitUntil::Exited, WaitUntil::Closed] {
        let status = within("call completes", process.wait(until, None))
            .await
            .unwrap();
        assert_eq!(
            (status.exit.map(|exit| exit.code), status.closed),
            (Some(1), true)
        );
    }
    assert_eq!(process.status().exit.map(|exit| exit.code), Some(1));
}

pub async fn wait_works_without_a_follower(subject: &Subject) {
    let command = subject.sh("echo some; exit 1", &[]);
    let started = within("command starts", subject.backend.start(command))
        .await
        .unwrap();
    let wait = started.process.wait(WaitUntil::Closed, None);
    let status = within("process closes", wait).await.unwrap();
    assert_eq!(
        (status.exit.map(|exit| exit.code), status.closed),
        (Some(1), true)
    );
}
