//! Processes on a pseudo-terminal.

use exec_env::{environment::StartError, process::ProcessError};
use exec_wire::process::{OutputStream, TerminalSize};

use crate::{
    bounded_wait::within,
    difference::Difference,
    followed_process::{assert_unknown, contains},
    subject::{Subject, on_terminal, piped},
};

pub async fn terminal_echoes_input(subject: &Subject) {
    let mut running = subject
        .start(on_terminal(subject.command(&["cat"]), 24, 80))
        .await;
    running.write(b"hello\n").await;
    // Echoed by the terminal, then printed by the program.
    running
        .until(OutputStream::Pty, |shown| {
            String::from_utf8_lossy(shown).matches("hello\r\n").count() == 2
        })
        .await;
}

pub async fn terminal_is_one_stream_and_the_controlling_terminal(subject: &Subject) {
    let script =
        "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo out && echo err >&2 && echo tty >/dev/tty";
    let told = subject
        .start(on_terminal(subject.sh(script, &[]), 24, 80))
        .await
        .finish()
        .await;
    assert_eq!(told.code(), 0);
    assert_eq!(told.terminal(), b"out\r\nerr\r\ntty\r\n");
    assert_eq!((told.stdout(), told.stderr()), (Vec::new(), Vec::new()));
}

pub async fn terminal_starts_with_the_requested_size(subject: &Subject) {
    if subject.differs(Difference::OneTerminalSize) {
        let command = on_terminal(subject.probe(&["window"]), 31, 97);
        let error = subject.refused(command).await;
        assert!(matches!(error, StartError::Refused { field: "size", .. }));
        let command = on_terminal(subject.probe(&["window"]), 24, 80);
        let mut running = subject.start(command).await;
        return running
            .until_terminal_contains("24 rows 80 columns\r\n")
            .await;
    }
    let mut running = subject
        .start(on_terminal(subject.probe(&["window"]), 31, 97))
        .await;
    running
        .until_terminal_contains("31 rows 97 columns\r\n")
        .await;
}

pub async fn resize_is_delivered_to_the_process(subject: &Subject) {
    let mut running = subject
        .start(on_terminal(subject.probe(&["window"]), 24, 80))
        .await;
    running
        .until_terminal_contains("24 rows 80 columns\r\n")
        .await;
    for (rows, cols) in [(50, 132), (1, 1)] {
        let resize = running.process.resize(TerminalSize { rows, cols });
        if subject.differs(Difference::NoResize) {
            return assert_unknown(within("refusal arrives", resize).await);
        }
        assert_eq!(within("resize completes", resize).await, Ok(()));
        running
            .until_terminal_contains(&format!("{rows} rows {cols} columns\r\n"))
            .await;
    }
}

pub async fn resize_without_a_terminal_is_refused(subject: &Subject) {
    let running = subject.start(piped(subject.command(&["cat"]))).await;
    let resize = running.process.resize(TerminalSize { rows: 24, cols: 80 });
    let refused = Err(ProcessError::NoTerminal(running.process.id().clone()));
    assert_eq!(within("refusal arrives", resize).await, refused);
}

pub async fn size_without_rows_or_columns_is_refused(subject: &Subject) {
    let running = subject
        .start(on_terminal(subject.command(&["cat"]), 24, 80))
        .await;
    for (rows, cols) in [(0, 80), (24, 0)] {
        let resize = running.process.resize(TerminalSize { rows, cols });
        assert_eq!(
            within("refusal arrives", resize).await,
            Err(ProcessError::EmptySize)
        );
    }
}

pub async fn close_stdin_sends_end_of_file_on_a_terminal(subject: &Subject) {
    let running = subject
        .start(on_terminal(subject.command(&["cat"]), 24, 80))
        .await;
    running.write(b"line\n").await;
    running.close_stdin().await;
    if subject.differs(Difference::NoCloseStdin) {
        // Without `closeStdin`, the client can still write the control character.
        running.write(b"\x04").await;
    }
    let told = running.finish().await;
    assert_eq!(told.code(), 0);
    assert!(contains(&told.terminal(), "line\r\nline\r\n"), "{told:?}");
}

pub async fn control_c_interrupts_the_foreground_process(subject: &Subject) {
    let mut running = subject
        .start(on_terminal(subject.probe(&["catch", "1"]), 24, 80))
        .await;
    running.until_terminal_contains("ready").await;
    running.write(b"\x03").await;
    let told = running.finish().await;
    assert_eq!(told.code(), 0);
    assert!(contains(&told.terminal(), "got SIGINT"), "{told:?}");
}

pub async fn signal_death_is_reported_on_a_terminal(subject: &Subject) {
    let told = subject
        .start(on_terminal(subject.sh("kill -KILL $$", &[]), 24, 80))
        .await;
    let exit = told.finish().await.exit().unwrap();
    if subject.differs(Difference::TerminalsHideSignals) {
        return assert_eq!((exit.code, exit.signal), (1, None));
    }
    assert_eq!((exit.code, exit.signal), (137, Some("SIGKILL")));
}
