//! Writing to commands.

use std::time::Duration;

use exec_test_support::fake_process::ProcessCall;
use exec_wire::process::{OutputStream, ProcessSignal, WriteStatus};

use super::{ExecFixture, command, quick, summary, write};
use crate::unified::{ExecCommand, ExecCommandError, OutputView, WriteStdin, WriteStdinError};

#[tokio::test(start_paused = true)]
async fn input_arrives_and_stdin_is_closed_after_it() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    let text = "x".repeat(600_000);
    let call = WriteStdin {
        close: true,
        ..write(number, &text)
    };
    fixture.exec.write_stdin(call).await.unwrap();
    assert_eq!(fake.input(), (text.into_bytes(), true));
}

#[tokio::test(start_paused = true)]
async fn closed_stdin_is_reported_and_output_kept() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    fake.set_write_status(WriteStatus::StdinClosed);
    fake.print("kept");
    let error = fixture
        .exec
        .write_stdin(write(number, "x"))
        .await
        .unwrap_err();
    assert_eq!(error, WriteStdinError::InputClosed(number));
    assert_eq!(fixture.look(number).await.unwrap().transcript.text, "kept");
    fake.exit(0);
    fake.close();
    let output = fixture.exec.write_stdin(write(number, "x")).await.unwrap();
    assert_eq!(
        summary(&output),
        ("", Some(0), false),
        "the exit is shown instead of the error"
    );
    let events = fixture.events.lines();
    let writes = events.iter().filter(|line| *line == "c stdin 1 x");
    assert_eq!(writes.count(), 1, "the second was not written");
}

#[tokio::test(start_paused = true)]
async fn unread_stdin_times_out() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    fake.set_reading(false);
    let blocked = tokio::time::timeout(
        Duration::from_millis(5001),
        fixture.exec.write_stdin(write(number, "x")),
    );
    let error = blocked.await.unwrap().unwrap_err();
    assert_eq!(error, WriteStdinError::NotReading(number));
}

#[tokio::test(start_paused = true)]
async fn ctrl_c_is_a_signal_without_a_terminal_and_a_character_with_one() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    fixture
        .exec
        .write_stdin(write(number, "\u{3}"))
        .await
        .unwrap();
    let interrupt = ProcessCall::Signal(ProcessSignal::Interrupt);
    assert_eq!(fake.calls(), [interrupt]);
    let tty = ExecCommand {
        tty: true,
        ..quick()
    };
    let number = fixture.run(tty).await.running.unwrap();
    let (_, fake) = fixture.backend.started(1).await;
    fixture
        .exec
        .write_stdin(write(number, "\u{3}"))
        .await
        .unwrap();
    assert_eq!(fake.calls(), [ProcessCall::Write("\u{3}".into())]);
}

#[tokio::test(start_paused = true)]
async fn only_a_terminal_has_a_screen() {
    let fixture = ExecFixture::new();
    let screen = ExecCommand {
        view: OutputView::Screen,
        ..command()
    };
    let error = fixture.exec.exec_command(screen.clone()).await.unwrap_err();
    assert!(matches!(error, ExecCommandError::NoScreen), "{error}");
    assert_eq!(fixture.backend.start_count(), 0);
    let number = fixture.running().await;
    let look = WriteStdin {
        view: OutputView::Screen,
        ..write(number, "")
    };
    let error = fixture.exec.write_stdin(look).await.unwrap_err();
    assert_eq!(error, WriteStdinError::NoScreen(number));
    fixture.backend.script_next(|fake| {
        fake.print_to(OutputStream::Pty, "\x1b[2J\x1b[2;3Hmenu\x1b[5;1H");
    });
    let tty = ExecCommand {
        tty: true,
        ..screen
    };
    let output = fixture.run(tty).await;
    let expected = "\n  menu\n[cursor at row 5, column 1]\n";
    assert_eq!(output.transcript.text, expected);
    let number = output.running.unwrap();
    let text = fixture.look(number).await.unwrap().transcript.text;
    assert_eq!(text, "", "what the screen showed is not shown again");
}

#[tokio::test(start_paused = true)]
async fn slow_write_succeeds_and_its_output_is_awaited() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    let latency = Duration::from_millis(400);
    fake.delay_writes(latency);
    let (output, ()) = tokio::join!(fixture.exec.write_stdin(write(number, "x")), async {
        tokio::time::sleep(latency + Duration::from_millis(100)).await;
        fake.print("answer");
    });
    let output = output.unwrap();
    assert_eq!(summary(&output), ("answer", None, true));
    assert_eq!(output.wall_time, latency + Duration::from_millis(250));
}

#[tokio::test(start_paused = true)]
async fn screen_reports_scrolled_lines() {
    let fixture = ExecFixture::new();
    fixture.backend.script_next(|fake| {
        let lines: String = (0..100).map(|line| format!("{line}\r\n")).collect();
        fake.print_to(OutputStream::Pty, lines);
    });
    let screen = ExecCommand {
        view: OutputView::Screen,
        tty: true,
        ..command()
    };
    let output = fixture.run(screen).await;
    let (number, text) = (output.running.unwrap(), output.transcript.text);
    let lost =
        "[77 lines have scrolled off the screen since the last call and are not shown]\n77\n";
    assert!(text.starts_with(lost), "{text}");
    let look = WriteStdin {
        view: OutputView::Screen,
        ..write(number, "")
    };
    let later = fixture.exec.write_stdin(look).await.unwrap();
    assert!(later.transcript.text.starts_with("77\n"));
}
