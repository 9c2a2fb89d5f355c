//! Dropping handles kills processes, and many processes run concurrently.

use std::{pin::pin, sync::Arc};

use exec_env::environment::Command;
use exec_env::process::ExecProcessEvent as Event;
use futures_util::{FutureExt, StreamExt, future::join_all};

use crate::{
    bounded_wait::within,
    cases::termination::{OUTSIDE_THE_GROUP, tree},
    difference::Difference,
    process_marker::ProcessMarker,
    scratch_dir::ScratchDir,
    subject::{Subject, piped},
};

pub async fn dropping_the_last_handle_kills_the_tree(subject: &Subject) {
    let scratch = ScratchDir::new();
    let lifeline = scratch.lifeline();
    let mark = ProcessMarker::new();
    let running = tree(subject, &lifeline, &mark).await;
    let clone = Arc::clone(&running.process);
    drop(running);
    drop(clone);
    if subject.differs(Difference::DescendantsSurvive) {
        return mark.left(OUTSIDE_THE_GROUP).await;
    }
    lifeline.gone().await;
}

pub async fn event_stream_outlives_the_handle_and_reports_the_exit(subject: &Subject) {
    let mut running = subject
        .start(subject.sh("echo ready; exec sleep 1000", &[]))
        .await;
    running.until_stdout_contains("ready").await;
    let events = running.into_events();
    let rest = within("event stream ends", events.collect::<Vec<_>>()).await;
    assert!(matches!(&rest[..], [Event::Exited(_, exit), Event::Closed(_)] if exit.code == 137));
}

pub async fn dropping_the_handle_kills_descendants_of_an_exited_process(subject: &Subject) {
    let scratch = ScratchDir::new();
    let lifeline = scratch.lifeline();
    let script = r#"exec 9>"$1"; setsid sleep 1000 & echo held >&9"#;
    let mark = ProcessMarker::new();
    let command = mark.on(subject.sh(script, &[lifeline.path()]));
    let mut running = subject.start(command).await;
    lifeline.held().await;
    running.exit().await;
    drop(running);
    if subject.differs(Difference::LeftoversSurvive) {
        return mark.left(1).await;
    }
    lifeline.gone().await;
}

pub async fn cancelled_start_leaves_nothing_running(subject: &Subject) {
    let mark = ProcessMarker::new();
    for polls in 0..20 {
        let command = mark.on(subject.command(&["sleep", "1000"]));
        let mut start = pin!(subject.backend.start(command));
        for _ in 0..polls {
            // If the start completes first, the process runs and dropping its handle kills it.
            if start.as_mut().now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    // Earlier starts have settled once this command has exited.
    assert_eq!(
        subject
            .start(subject.sh("exit 0", &[]))
            .await
            .finish()
            .await
            .code(),
        0
    );
    mark.gone().await;
}

pub async fn thirty_two_processes_run_concurrently(subject: &Subject) {
    let starts = (0..32).map(|number: u32| {
        let script = r#"read line; echo "$1 $line"; exit "$1""#;
        subject.start(piped(subject.sh(script, &[&number.to_string()])))
    });
    let all = join_all(starts).await;
    let finishes = (0..).zip(all).map(|(number, running)| async move {
        running.write(b"go\n").await;
        let told = running.finish().await;
        assert_eq!(
            (told.text(), told.code()),
            (format!("{number} go\n"), number)
        );
    });
    join_all(finishes).await;
}

pub async fn short_command_is_reported_after_it_ended(subject: &Subject) {
    let commands: Vec<Command> = (0..16).map(|_| subject.sh("echo done", &[])).collect();
    for command in commands {
        let told = subject.start(command).await.finish().await;
        assert_eq!((told.text().as_str(), told.code()), ("done\n", 0));
    }
}
