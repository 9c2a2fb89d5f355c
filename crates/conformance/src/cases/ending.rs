//! Ending and signalling processes.

use exec_core::log::Event;
use exec_wire::process::{ExitCause, OutputStream, ProcessSignal, TerminateMode, WriteStatus};
use futures_util::future::{join, join_all};

use crate::{
    running::Running,
    scratch::{Lifeline, Scratch},
    subject::{Subject, on_terminal, piped},
    within::within,
};

/// A tree of four: a shell, a child in its group, one in a session of its own, and one that was
/// forked twice and has let go of every descriptor but the lifeline.
const TREE: &str = r#"
    exec 9>"$1"
    sleep 1000 &
    setsid sleep 1000 &
    setsid sh -c 'setsid sleep 1000 </dev/null >/dev/null 2>&1 & exit' &
    wait $!
    echo held >&9
    exec sleep 1000
"#;

/// Starts the tree, and waits until it is complete.
pub(super) async fn tree(subject: &Subject, lifeline: &Lifeline) -> Running {
    let running = subject.start(subject.sh(TREE, &[lifeline.path()])).await;
    lifeline.held().await;
    running
}

async fn terminate(running: &Running, mode: TerminateMode) -> bool {
    within("it is terminated", running.process.terminate(mode))
        .await
        .unwrap()
}

pub async fn terminate_kills_the_whole_tree(subject: &Subject) {
    let scratch = Scratch::new();
    let lifeline = scratch.lifeline();
    let running = tree(subject, &lifeline).await;
    assert!(terminate(&running, TerminateMode::Force).await);
    lifeline.gone().await;
    let exit = running.finish().await.exit().unwrap();
    let killed = (137, Some("SIGKILL"), ExitCause::Terminated);
    assert_eq!((exit.code, exit.signal, exit.cause), killed);
}

pub async fn terminate_kills_the_whole_tree_of_a_terminal(subject: &Subject) {
    let scratch = Scratch::new();
    let lifeline = scratch.lifeline();
    let running = subject
        .start(on_terminal(subject.sh(TREE, &[lifeline.path()]), 24, 80))
        .await;
    lifeline.held().await;
    assert!(terminate(&running, TerminateMode::Force).await);
    lifeline.gone().await;
    assert_eq!(running.finish().await.code(), 137);
}

pub async fn terminate_drains_what_was_written(subject: &Subject) {
    let scratch = Scratch::new();
    let lifeline = scratch.lifeline();
    // Fits into a pipe, so that it is written whether or not anybody reads.
    let script = r#"head -c 60000 /dev/zero; echo held >"$1"; exec sleep 1000"#;
    let running = subject.start(subject.sh(script, &[lifeline.path()])).await;
    lifeline.held().await;
    assert!(terminate(&running, TerminateMode::Force).await);
    let told = running.finish().await;
    assert_eq!((told.stdout().len(), told.code()), (60000, 137));
}

pub async fn terminate_tells_whether_it_was_running(subject: &Subject) {
    let mut running = subject.start(subject.sh("exec sleep 1000", &[])).await;
    assert!(terminate(&running, TerminateMode::Force).await);
    running.exit().await;
    assert!(!terminate(&running, TerminateMode::Force).await);
    let closed = running.process.clone();
    running.finish().await;
    let again = within("it is answered", closed.terminate(TerminateMode::Force)).await;
    assert_eq!(again, Ok(false));
}

pub async fn a_graceful_end_lets_a_handler_run(subject: &Subject) {
    let mut running = subject.start(subject.probe(&["catch", "1"])).await;
    running.until_says("ready").await;
    assert!(terminate(&running, TerminateMode::Graceful { timeout_ms: 15_000 }).await);
    let told = running.finish().await;
    assert_eq!(told.text(), "ready\ngot SIGTERM\n");
    let exit = told.exit().unwrap();
    assert_eq!(
        (exit.code, exit.signal, exit.cause),
        (0, None, ExitCause::Terminated)
    );
}

pub async fn a_graceful_end_kills_when_the_time_is_up(subject: &Subject) {
    let scratch = Scratch::new();
    let lifeline = scratch.lifeline();
    let script = r#"exec 9>"$1"; trap '' TERM; echo held >&9; setsid sleep 1000 & sleep 1000"#;
    let running = subject.start(subject.sh(script, &[lifeline.path()])).await;
    lifeline.held().await;
    assert!(terminate(&running, TerminateMode::Graceful { timeout_ms: 100 }).await);
    lifeline.gone().await;
    let exit = running.finish().await.exit().unwrap();
    let killed = (137, Some("SIGKILL"), ExitCause::Terminated);
    assert_eq!((exit.code, exit.signal, exit.cause), killed);
}

pub async fn interrupt_reaches_the_group(subject: &Subject) {
    let script = r#"trap 'echo shell' INT; "$1" catch 1 & "$1" catch 1 >&2; wait; exit 3"#;
    let mut running = subject
        .start(subject.sh(script, &[subject.probe_path()]))
        .await;
    running.until_says("ready").await;
    running
        .until(OutputStream::Stderr, |output| output == b"ready\n")
        .await;
    let signal = running.process.signal(ProcessSignal::Interrupt);
    assert_eq!(within("it is signalled", signal).await, Ok(()));
    let told = running.finish().await;
    assert_eq!(told.stderr(), b"ready\ngot SIGINT\n");
    let text = told.text();
    assert!(
        text.contains("got SIGINT\n") && text.contains("shell\n"),
        "{text}"
    );
    let exit = told.exit().unwrap();
    assert_eq!((exit.code, exit.cause), (3, ExitCause::Exit));
}

pub async fn every_signal_is_delivered(subject: &Subject) {
    let signals = [
        (ProcessSignal::Interrupt, "SIGINT"),
        (ProcessSignal::Terminate, "SIGTERM"),
        (ProcessSignal::Hangup, "SIGHUP"),
        (ProcessSignal::Quit, "SIGQUIT"),
        (ProcessSignal::User1, "SIGUSR1"),
        (ProcessSignal::User2, "SIGUSR2"),
    ];
    let mut running = subject.start(subject.probe(&["catch", "7"])).await;
    running.until_says("ready").await;
    for (signal, name) in signals {
        within("it is signalled", running.process.signal(signal))
            .await
            .unwrap();
        running.until_says(&format!("got {name}\n")).await;
    }
    within(
        "it is signalled",
        running.process.signal(ProcessSignal::Kill),
    )
    .await
    .unwrap();
    let exit = running.exit().await;
    assert_eq!(
        (exit.signal, exit.cause),
        (Some("SIGKILL"), ExitCause::Signal)
    );
}

pub async fn a_stopped_process_goes_on_when_it_is_told_to(subject: &Subject) {
    let mut running = subject.start(piped(subject.command(&["cat"]))).await;
    running.write(b"before").await;
    running.until_says("before").await;
    for signal in [ProcessSignal::Stop, ProcessSignal::Continue] {
        within("it is signalled", running.process.signal(signal))
            .await
            .unwrap();
    }
    running.write(b"after").await;
    running.until_says("after").await;
    running.close_stdin().await;
    assert_eq!(running.finish().await.code(), 0);
}

pub async fn a_stopped_process_can_be_ended_gracefully(subject: &Subject) {
    let mut running = subject
        .start(subject.sh("echo ready; exec sleep 1000", &[]))
        .await;
    running.until_says("ready").await;
    within(
        "it is signalled",
        running.process.signal(ProcessSignal::Stop),
    )
    .await
    .unwrap();
    assert!(terminate(&running, TerminateMode::Graceful { timeout_ms: 15_000 }).await);
    let exit = running.finish().await.exit().unwrap();
    assert_eq!(
        (exit.signal, exit.cause),
        (Some("SIGTERM"), ExitCause::Terminated)
    );
}

pub async fn a_signal_after_the_end_does_nothing(subject: &Subject) {
    let mut running = subject.start(subject.sh("exit 2", &[])).await;
    running.exit().await;
    for signal in [ProcessSignal::Kill, ProcessSignal::Interrupt] {
        assert_eq!(
            within("it is answered", running.process.signal(signal)).await,
            Ok(())
        );
    }
    let told = running.finish().await;
    assert_eq!(told.code(), 2);
    assert!(matches!(told.0.last(), Some(Event::Closed(_))));
}

pub async fn an_end_is_told_although_signals_are_under_way(subject: &Subject) {
    for _ in 0..20 {
        let running = subject.start(piped(subject.command(&["cat"]))).await;
        let close = running.process.close_stdin(None);
        let signals = (0..30).map(|_| running.process.signal(ProcessSignal::Continue));
        let signals: Vec<_> = signals.collect();
        for outcome in within("signals are answered", join_all(signals)).await {
            assert_eq!(outcome, Ok(()));
        }
        assert_eq!(
            within("the end is taken", close).await,
            Ok(WriteStatus::Accepted)
        );
        let exit = running.finish().await.exit().unwrap();
        assert_eq!((exit.code, exit.cause), (0, ExitCause::Exit));
    }
}

pub async fn terminating_what_ends_by_itself_loses_no_status(subject: &Subject) {
    for _ in 0..50 {
        let mut running = subject.start(piped(subject.command(&["cat"]))).await;
        let close = running.process.close_stdin(None);
        let terminate = running.process.terminate(TerminateMode::Force);
        within("both are answered", join(close, terminate))
            .await
            .1
            .unwrap();
        let exit = running.exit().await;
        // Whichever was first: it is never unknown.
        assert!(matches!(exit.code, 0 | 137), "{exit:?}");
    }
}
