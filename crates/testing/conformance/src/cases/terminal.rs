//! Processes on a pseudo-terminal.

use exec_env::{backend::StartError, process::ProcessError};
use exec_wire::process::{OutputStream, TerminalSize};

use crate::{
    bounded_wait::within,
    difference::Difference,
    followed_process::{assert_unknown, contains},
    subject::{Subject, on_terminal, piped},
};

pub async fn a_terminal_echoes_what_is_written(subject: &Subject) {
    let mut running = subject
        .start(on_terminal(subject.command(&["cat"]), 24, 80))
        .await;
    running.write(b"hello\n").await;
    // Once by the terminal, once by the program.
    running
        .until(OutputStream::Pty, |shown| {
            String::from_utf8_lossy(shown).matches("hello\r\n").count() == 2
        })
        .await;
}

pub async fn a_terminal_is_one_stream_and_a_controlling_one(subject: &Subject) {
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

pub async fn a_terminal_begins_with_its_size(subject: &Subject) {
    if subject.differs(Difference::OneTerminalSize) {
        let command = on_terminal(subject.probe(&["window"]), 31, 97);
        let error = subject.refused(command).await;
        assert!(matches!(error, StartError::Refused { field: "size", .. }));
        let command = on_terminal(subject.probe(&["window"]), 24, 80);
        let mut running = subject.start(command).await;
        return running.until_shows("24 rows 80 columns\r\n").await;
    }
    let mut running = subject
        .start(on_terminal(subject.probe(&["window"]), 31, 97))
        .await;
    running.until_shows("31 rows 97 columns\r\n").await;
}

pub async fn a_resize_is_told_to_the_process(subject: &Subject) {
    let mut running = subject
        .start(on_terminal(subject.probe(&["window"]), 24, 80))
        .await;
    running.until_shows("24 rows 80 columns\r\n").await;
    for (rows, cols) in [(50, 132), (1, 1)] {
        let resize = running.process.resize(TerminalSize { rows, cols });
        if subject.differs(Difference::NoResize) {
            return assert_unknown(within("it is refused", resize).await);
        }
        assert_eq!(within("it is resized", resize).await, Ok(()));
        running
            .until_shows(&format!("{rows} rows {cols} columns\r\n"))
            .await;
    }
}

pub async fn only_a_terminal_has_a_size(subject: &Subject) {
    let running = subject.start(piped(subject.command(&["cat"]))).await;
    let resize = running.process.resize(TerminalSize { rows: 24, cols: 80 });
    let refused = Err(ProcessError::NoTerminal(running.process.id().clone()));
    assert_eq!(within("it is refused", resize).await, refused);
}

pub async fn a_size_without_rows_or_columns_is_refused(subject: &Subject) {
    let running = subject
        .start(on_terminal(subject.command(&["cat"]), 24, 80))
        .await;
    for (rows, cols) in [(0, 80), (24, 0)] {
        let resize = running.process.resize(TerminalSize { rows, cols });
        assert_eq!(
            within("it is refused", resize).await,
            Err(ProcessError::EmptySize)
        );
    }
}

pub async fn close_stdin_is_the_end_of_file_on_a_terminal(subject: &Subject) {
    let running = subject
        .start(on_terminal(subject.command(&["cat"]), 24, 80))
        .await;
    running.write(b"line\n").await;
    running.close_stdin().await;
    if subject.differs(Difference::NoCloseStdin) {
        // Whoever knows the terminal can write its control character.
        running.write(b"\x04").await;
    }
    let told = running.finish().await;
    assert_eq!(told.code(), 0);
    assert!(contains(&told.terminal(), "line\r\nline\r\n"), "{told:?}");
}

pub async fn control_c_interrupts_the_foreground(subject: &Subject) {
    let mut running = subject
        .start(on_terminal(subject.probe(&["catch", "1"]), 24, 80))
        .await;
    running.until_shows("ready").await;
    running.write(b"\x03").await;
    let told = running.finish().await;
    assert_eq!(told.code(), 0);
    assert!(contains(&told.terminal(), "got SIGINT"), "{told:?}");
}

pub async fn death_by_a_signal_is_told_on_a_terminal_too(subject: &Subject) {
    let told = subject
        .start(on_terminal(subject.sh("kill -KILL $$", &[]), 24, 80))
        .await;
    let exit = told.finish().await.exit().unwrap();
    if subject.differs(Difference::TerminalsHideSignals) {
        return assert_eq!((exit.code, exit.signal), (1, None));
    }
    assert_eq!((exit.code, exit.signal), (137, Some("SIGKILL")));
}
