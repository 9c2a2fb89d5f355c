//! Terminating and signalling processes.

use exec_env::process::{ExecProcessEvent as Event, ProcessError};
use exec_wire::{
    error::ErrorCode,
    process::{ExitCause, OutputStream, ProcessSignal, TerminateMode, WriteStatus},
};
use futures_util::future::{join, join_all};

use crate::{
    bounded_wait::within,
    difference::Difference,
    followed_process::{FollowedProcess, assert_closed},
    process_marker::ProcessMarker,
    scratch_dir::{LifelinePipe, ScratchDir},
    subject::{Subject, on_terminal},
};

/// A tree of four processes: a shell, a child in its process group, one in its own session, and a
/// double-forked one that closed every descriptor except the lifeline.
const TREE: &str = r#"
    exec 9>"$1"
    sleep 1000 &
    setsid sleep 1000 &
    setsid sh -c 'setsid sleep 1000 </dev/null >/dev/null 2>&1 & exit' &
    wait $!
    echo held >&9
    exec sleep 1000
"#;

/// Number of processes of the tree outside its process group.
pub(super) const OUTSIDE_THE_GROUP: usize = 2;

/// Starts the tree and waits until all of it runs.
pub(super) async fn tree(
    subject: &Subject,
    lifeline: &LifelinePipe,
    mark: &ProcessMarker,
) -> FollowedProcess {
    let command = mark.on(subject.sh(TREE, &[lifeline.path()]));
    let running = subject.start(command).await;
    lifeline.held().await;
    running
}

async fn terminate(running: &FollowedProcess, mode: TerminateMode) -> bool {
    within("terminate completes", running.process.terminate(mode))
        .await
        .unwrap()
}

/// Asserts that a graceful terminate is refused and has no effect.
async fn refuses_graceful(running: &FollowedProcess) {
    let mode = TerminateMode::Graceful { timeout_ms: 100 };
    match within("refusal arrives", running.process.terminate(mode)).await {
        Err(ProcessError::Remote(error)) => assert!(error.message.contains("mode"), "{error}"),
        other => panic!("expected a refusal: {other:?}"),
    }
    assert_eq!(running.process.status().exit, None);
}

/// Asserts that a signal is refused and has no effect.
async fn refuses_signal(running: &FollowedProcess, signal: ProcessSignal) {
    match within("refusal arrives", running.process.signal(signal)).await {
        Err(ProcessError::Remote(error)) => assert_eq!(error.code, ErrorCode::INVALID_PARAMS),
        other => panic!("expected a refusal: {other:?}"),
    }
}

pub async fn terminate_kills_the_whole_tree(subject: &Subject) {
    let scratch = ScratchDir::new();
    let lifeline = scratch.lifeline();
    let mark = ProcessMarker::new();
    let running = tree(subject, &lifeline, &mark).await;
    assert!(terminate(&running, TerminateMode::Force).await);
    if subject.differs(Difference::DescendantsSurvive) {
        mark.left(OUTSIDE_THE_GROUP).await;
    } else {
        lifeline.gone().await;
    }
    let exit = running.finish().await.exit().unwrap();
    subject.assert_end(&exit, 137, Some("SIGKILL"), ExitCause::Terminated);
}

pub async fn terminate_kills_the_whole_tree_of_a_terminal(subject: &Subject) {
    let scratch = ScratchDir::new();
    let lifeline = scratch.lifeline();
    let mark = ProcessMarker::new();
    let command = mark.on(subject.sh(TREE, &[lifeline.path()]));
    let running = subject.start(on_terminal(command, 24, 80)).await;
    lifeline.held().await;
    assert!(terminate(&running, TerminateMode::Force).await);
    if subject.differs(Difference::DescendantsSurvive) {
        mark.left(OUTSIDE_THE_GROUP).await;
    } else {
        lifeline.gone().await;
    }
    let hidden = subject.differs(Difference::TerminalsHideSignals);
    let code = if hidden { 1 } else { 137 };
    assert_eq!(running.finish().await.code(), code);
}

pub async fn terminate_delivers_output_already_written(subject: &Subject) {
    let scratch = ScratchDir::new();
    let lifeline = scratch.lifeline();
    // Fits into the pipe buffer, so it is written even if nothing reads.
    let script = r#"head -c 60000 /dev/zero; echo held >"$1"; exec sleep 1000"#;
    let running = subject.start(subject.sh(script, &[lifeline.path()])).await;
    lifeline.held().await;
    assert!(terminate(&running, TerminateMode::Force).await);
    let told = running.finish().await;
    let dropped = subject.differs(Difference::ForcedEndsMayDropOutput) && told.stdout().is_empty();
    let expected = if dropped { 0 } else { 60000 };
    assert_eq!((told.stdout().len(), told.code()), (expected, 137));
}

pub async fn terminate_reports_whether_it_was_running(subject: &Subject) {
    let mut running = subject.start(subject.sh("exec sleep 1000", &[])).await;
    assert!(terminate(&running, TerminateMode::Force).await);
    running.exit().await;
    assert!(!terminate(&running, TerminateMode::Force).await);
    let closed = running.process.clone();
    running.finish().await;
    let again = within("response arrives", closed.terminate(TerminateMode::Force)).await;
    assert_eq!(again, Ok(false));
}

pub async fn graceful_terminate_runs_the_signal_handler(subject: &Subject) {
    let mut running = subject.start(subject.probe(&["catch", "1"])).await;
    running.until_stdout_contains("ready").await;
    if subject.differs(Difference::NoGracefulEnd) {
        return refuses_graceful(&running).await;
    }
    assert!(terminate(&running, TerminateMode::Graceful { timeout_ms: 15_000 }).await);
    let told = running.finish().await;
    assert_eq!(told.text(), "ready\ngot SIGTERM\n");
    let exit = told.exit().unwrap();
    assert_eq!(
        (exit.code, exit.signal, exit.cause),
        (0, None, ExitCause::Terminated)
    );
}

pub async fn graceful_terminate_kills_after_the_grace_period(subject: &Subject) {
    let scratch = ScratchDir::new();
    let lifeline = scratch.lifeline();
    let script = r#"exec 9>"$1"; trap '' TERM; echo held >&9; setsid sleep 1000 & sleep 1000"#;
    let mark = ProcessMarker::new();
    let command = mark.on(subject.sh(script, &[lifeline.path()]));
    let running = subject.start(command).await;
    lifeline.held().await;
    if subject.differs(Difference::NoGracefulEnd) {
        return refuses_graceful(&running).await;
    }
    assert!(terminate(&running, TerminateMode::Graceful { timeout_ms: 100 }).await);
    lifeline.gone().await;
    let exit = running.finish().await.exit().unwrap();
    let killed = (137, Some("SIGKILL"), ExitCause::Terminated);
    assert_eq!((exit.code, exit.signal, exit.cause), killed);
}

pub async fn interrupt_reaches_the_process_group(subject: &Subject) {
    let script = r#"trap 'echo shell' INT; "$1" catch 1 & "$1" catch 1 >&2; wait; exit 3"#;
    let mut running = subject
        .start(subject.sh(script, &[subject.probe_path()]))
        .await;
    running.until_stdout_contains("ready").await;
    running
        .until(OutputStream::Stderr, |output| output == b"ready\n")
        .await;
    let signal = running.process.signal(ProcessSignal::Interrupt);
    assert_eq!(within("signal is acknowledged", signal).await, Ok(()));
    let told = running.finish().await;
    assert_eq!(told.stderr(), b"ready\ngot SIGINT\n");
    let text = told.text();
    assert!(
        text.contains("got SIGINT\n") && text.contains("shell\n"),
        "{text}"
    );
    let exit = told.exit().unwrap();
    subject.assert_end(&exit, 3, None, ExitCause::Exit);
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
    running.until_stdout_contains("ready").await;
    for (signal, name) in signals {
        if signal != ProcessSignal::Interrupt && subject.differs(Difference::OnlyInterrupt) {
            refuses_signal(&running, signal).await;
            continue;
        }
        within("signal is acknowledged", running.process.signal(signal))
            .await
            .unwrap();
        running
            .until_stdout_contains(&format!("got {name}\n"))
            .await;
    }
    if subject.differs(Difference::OnlyInterrupt) {
        return refuses_signal(&running, ProcessSignal::Kill).await;
    }
    within(
        "signal is acknowledged",
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

pub async fn stopped_process_resumes_on_sigcont(subject: &Subject) {
    let bytes = "beforeafter".len();
    let mut running = subject.start(subject.cat(bytes)).await;
    running.write(b"before").await;
    running.until_stdout_contains("before").await;
    for signal in [ProcessSignal::Stop, ProcessSignal::Continue] {
        if subject.differs(Difference::OnlyInterrupt) {
            refuses_signal(&running, signal).await;
            continue;
        }
        within("signal is acknowledged", running.process.signal(signal))
            .await
            .unwrap();
    }
    running.write(b"after").await;
    running.until_stdout_contains("after").await;
    running.close_stdin().await;
    assert_eq!(running.finish().await.code(), 0);
}

pub async fn stopped_process_can_be_terminated_gracefully(subject: &Subject) {
    let mut running = subject
        .start(subject.sh("echo ready; exec sleep 1000", &[]))
        .await;
    running.until_stdout_contains("ready").await;
    if subject.differs(Difference::OnlyInterrupt) {
        refuses_signal(&running, ProcessSignal::Stop).await;
        return refuses_graceful(&running).await;
    }
    within(
        "signal is acknowledged",
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

pub async fn signal_after_exit_does_nothing(subject: &Subject) {
    let mut running = subject.start(subject.sh("exit 2", &[])).await;
    running.exit().await;
    for signal in [ProcessSignal::Kill, ProcessSignal::Interrupt] {
        if signal != ProcessSignal::Interrupt && subject.differs(Difference::OnlyInterrupt) {
            refuses_signal(&running, signal).await;
            continue;
        }
        assert_eq!(
            within("response arrives", running.process.signal(signal)).await,
            Ok(())
        );
    }
    let told = running.finish().await;
    assert_eq!(told.code(), 2);
    assert!(matches!(told.0.last(), Some(Event::Closed(_))));
}

pub async fn exit_is_reported_while_signals_are_in_flight(subject: &Subject) {
    for _ in 0..20 {
        // The only signal that every server supports would kill a process that does not catch it.
        let unknown = subject.differs(Difference::OnlyInterrupt);
        let running = subject.start(subject.cat(0)).await;
        let close = running.process.close_stdin(None);
        let signals = (0..30).map(|_| running.process.signal(ProcessSignal::Continue));
        let signals: Vec<_> = signals.collect();
        for outcome in within("signal responses arrive", join_all(signals)).await {
            assert_eq!(outcome.is_err(), unknown, "{outcome:?}");
        }
        let closed = within("close-stdin response arrives", close).await;
        assert_closed(&subject.capabilities, closed, WriteStatus::Accepted);
        let exit = running.finish().await.exit().unwrap();
        subject.assert_end(&exit, 0, None, ExitCause::Exit);
    }
}

pub async fn terminate_racing_with_exit_keeps_the_status(subject: &Subject) {
    for _ in 0..50 {
        let mut running = subject.start(subject.cat(0)).await;
        let close = running.process.close_stdin(None);
        let terminate = running.process.terminate(TerminateMode::Force);
        within("both responses arrive", join(close, terminate))
            .await
            .1
            .unwrap();
        let exit = running.exit().await;
        // Either may win the race, but the status is always known.
        assert!(matches!(exit.code, 0 | 137), "{exit:?}");
    }
}
