//! How an end is told.

use exec_env::process::ExecProcessEvent as Event;
use exec_wire::process::ExitCause;

use crate::{difference::Difference, scratch::Scratch, subject::Subject};

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

pub async fn death_by_a_signal_is_told_by_number_and_name(subject: &Subject) {
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

pub async fn usage_is_reported_with_the_exit(subject: &Subject) {
    let told = subject
        .start(subject.sh("exit 0", &[]))
        .await
        .finish()
        .await;
    let usage = told.exit().unwrap().usage;
    if subject.differs(Difference::BareExits) {
        return assert_eq!(usage, None);
    }
    let usage = usage.expect("both ends tell what was used");
    assert!(usage.max_rss_bytes > 0);
}

pub async fn numbers_begin_with_one_and_the_close_is_last(subject: &Subject) {
    let script = "for i in 1 2 3 4 5; do echo $i; echo $i >&2; done; exit 3";
    let told = subject.start(subject.sh(script, &[])).await.finish().await;
    let numbers: Vec<u64> = told
        .0
        .iter()
        .map(|event| event.seq().expect("nothing failed").0)
        .collect();
    assert_eq!(numbers, (1..=told.0.len() as u64).collect::<Vec<_>>());
    assert!(matches!(told.0.last(), Some(Event::Closed(_))));
}

pub async fn exited_and_closed_come_exactly_once(subject: &Subject) {
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

pub async fn late_output_of_a_descendant_comes_before_the_close(subject: &Subject) {
    let scratch = Scratch::new();
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
