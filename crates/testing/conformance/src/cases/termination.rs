//! Ending and signalling processes.

use exec_env::process::{ExecProcessEvent as Event, ProcessError};
use exec_wire::{
    error::ErrorCode,
    process::{ExitCause, OutputStream, ProcessSignal, TerminateMode, WriteStatus},
};
use futures_util::future::{join, join_all};

use crate::{
    bounded_wait::within,
    difference::Difference,
    followed_process::{Running, assert_closed},
    process_marker::Mark,
    scratch_dir::{Lifeline, Scratch},
    subject::{Subject, on_terminal},
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

/// Those of the tree that have left its group.
pub(super) const LEFT_THE_GROUP: usize = 2;

/// Starts the tree, and waits until it is complete.
pub(super) async fn tree(subject: &Subject, lifeline: &Lifeline, mark: &Mark) -> Running {
    let command = mark.on(subject.sh(TREE, &[lifeline.path()]));
    let running = subject.start(command).await;
    lifeline.held().await;
    running
}

async fn terminate(running: &Running, mode: TerminateMode) -> bool {
    within("it is terminated", running.process.terminate(mode))
        .await
        .unwrap()
}

/// Sees that an end that is not at once is refused, and that nothing came of it.
async fn refuses_graceful(running: &Running) {
    let mode = TerminateMode::Graceful { timeout_ms: 100 };
    match within("it is refused", running.process.terminate(mode)).await {
        Err(ProcessError::Remote(error)) => assert!(error.message.contains("mode"), "{error}"),
        other => panic!("expected a refusal: {other:?}"),
    }
    assert_eq!(running.process.status().exit, None);
}

/// Sees that a signal is refused, and that nothing came of it.
async fn refuses_signal(running: &Running, signal: ProcessSignal) {
    match within("it is refused", running.process.signal(signal)).await {
        Err(ProcessError::Remote(error)) => assert_eq!(error.code, ErrorCode::INVALID_PARAMS),
        other => panic!("expected a refusal: {other:?}"),
    }
}

pub async fn terminate_kills_the_whole_tree(subject: &Subject) {
    let scratch = Scratch::new();
    let lifeline = scratch.lifeline();
    let mark = Mark::new();
    let running = tree(subject, &lifeline, &mark).await;
    assert!(terminate(&running, TerminateMode::Force).await);
    if subject.differs(Difference::DescendantsSurvive) {
        mark.left(LEFT_THE_GROUP).await;
    } else {
        lifeline.gone().await;
    }
    let exit = running.finish().await.exit().unwrap();
    subject.assert_end(&exit, 137, Some("SIGKILL"), ExitCause::Terminated);
}

pub async fn terminate_kills_the_whole_tree_of_a_terminal(subject: &Subject) {
    let scratch = Scratch::new();
    let lifeline = scratch.lifeline();
    let mark = Mark::new();
    let command = mark.on(subject.sh(TREE, &[lifeline.path()]));
    let running = subject.start(on_terminal(command, 24, 80)).await;
    lifeline.held().await;
    assert!(terminate(&running, TerminateMode::Force).await);
    if subject.differs(Difference::DescendantsSurvive) {
        mark.left(LEFT_THE_GROUP).await;
    } else {
        lifeline.gone().await;
    }
    let hidden = subject.differs(Difference::TerminalsHideSignals);
    let code = if hidden { 1 } else { 137 };
    assert_eq!(running.finish().await.code(), code);
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

pub async fn a_graceful_end_kills_when_the_time_is_up(subject: &Subject) {
    let scratch = Scratch::new();
    let lifeline = scratch.lifeline();
    let script = r#"exec 9>"$1"; trap '' TERM; echo held >&9; setsid sleep 1000 & sleep 1000"#;
    let mark = Mark::new();
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
    running.until_says("ready").await;
    for (signal, name) in signals {
        if signal != ProcessSignal::Interrupt && subject.differs(Difference::OnlyInterrupt) {
            refuses_signal(&running, signal).await;
            continue;
        }
        within("it is signalled", running.process.signal(signal))
            .await
            .unwrap();
        running.until_says(&format!("got {name}\n")).await;
    }
    if subject.differs(Difference::OnlyInterrupt) {
        return refuses_signal(&running, ProcessSignal::Kill).await;
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
    let bytes = "beforeafter".len();
    let mut running = subject.start(subject.cat(bytes)).await;
    running.write(b"before").await;
    running.until_says("before").await;
    for signal in [ProcessSignal::Stop, ProcessSignal::Continue] {
        if subject.differs(Difference::OnlyInterrupt) {
            refuses_signal(&running, signal).await;
            continue;
        }
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
    if subject.differs(Difference::OnlyInterrupt) {
        refuses_signal(&running, ProcessSignal::Stop).await;
        return refuses_graceful(&running).await;
    }
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
        if signal != ProcessSignal::Interrupt && subject.differs(Difference::OnlyInterrupt) {
            refuses_signal(&running, signal).await;
            continue;
        }
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
        // The one signal that every server knows would end what does not catch it.
        let unknown = subject.differs(Difference::OnlyInterrupt);
        let running = subject.start(subject.cat(0)).await;
        let close = running.process.close_stdin(None);
        let signals = (0..30).map(|_| running.process.signal(ProcessSignal::Continue));
        let signals: Vec<_> = signals.collect();
        for outcome in within("signals are answered", join_all(signals)).await {
            assert_eq!(outcome.is_err(), unknown, "{outcome:?}");
        }
        let closed = within("the end is answered", close).await;
        assert_closed(&subject.capabilities, closed, WriteStatus::Accepted);
        let exit = running.finish().await.exit().unwrap();
        subject.assert_end(&exit, 0, None, ExitCause::Exit);
    }
}

pub async fn terminating_what_ends_by_itself_loses_no_status(subject: &Subject) {
    for _ in 0..50 {
        let mut running = subject.start(subject.cat(0)).await;
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
