//! Writing to commands.

use std::time::Duration;

use exec_wire::process::{OutputStream, ProcessSignal, WriteStatus};

use super::{Stage, command, quick, seen, write};
use crate::unified::{ExecCommand, ExecCommandError, View, WriteStdin, WriteStdinError};

#[tokio::test(start_paused = true)]
async fn what_is_written_arrives_and_the_input_ends_behind_it() {
    let stage = Stage::new();
    let number = stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    let text = "x".repeat(600_000);
    let call = WriteStdin {
        close: true,
        ..write(number, &text)
    };
    stage.exec.write_stdin(call).await.unwrap();
    assert_eq!(fake.input(), (text, true));
}

#[tokio::test(start_paused = true)]
async fn an_input_that_is_closed_is_said_to_be_and_output_stays() {
    let stage = Stage::new();
    let number = stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    fake.answers(Some(WriteStatus::StdinClosed));
    fake.prints("kept");
    let error = stage
        .exec
        .write_stdin(write(number, "x"))
        .await
        .unwrap_err();
    assert_eq!(error, WriteStdinError::InputClosed(number));
    assert_eq!(stage.look(number).await.unwrap().transcript.text, "kept");
    fake.exits(0);
    fake.closes();
    let output = stage.exec.write_stdin(write(number, "x")).await.unwrap();
    assert_eq!(seen(&output), ("", Some(0), false), "its end says more");
    let told = stage.told.lines();
    let writes = told.iter().filter(|line| *line == "c stdin 1 x");
    assert_eq!(writes.count(), 1, "the second was not written");
}

#[tokio::test(start_paused = true)]
async fn a_command_that_does_not_read_is_not_waited_for() {
    let stage = Stage::new();
    let number = stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    fake.answers(None);
    let blocked = tokio::time::timeout(
        Duration::from_millis(5001),
        stage.exec.write_stdin(write(number, "x")),
    );
    let error = blocked.await.unwrap().unwrap_err();
    assert_eq!(error, WriteStdinError::NotReading(number));
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_is_a_signal_without_a_terminal_and_a_character_with_one() {
    let stage = Stage::new();
    let number = stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    stage
        .exec
        .write_stdin(write(number, "\u{3}"))
        .await
        .unwrap();
    assert_eq!(fake.signals(), [ProcessSignal::Interrupt]);
    assert_eq!(fake.input().0, "");
    let tty = ExecCommand {
        tty: true,
        ..quick()
    };
    let number = stage.run(tty).await.running.unwrap();
    let (_, fake) = stage.backend.started(1).await;
    stage
        .exec
        .write_stdin(write(number, "\u{3}"))
        .await
        .unwrap();
    assert_eq!(fake.signals(), []);
    assert_eq!(fake.input().0, "\u{3}");
}

#[tokio::test(start_paused = true)]
async fn only_a_terminal_has_a_screen() {
    let stage = Stage::new();
    let screen = ExecCommand {
        view: View::Screen,
        ..command()
    };
    let error = stage.exec.exec_command(screen.clone()).await.unwrap_err();
    assert!(matches!(error, ExecCommandError::NoScreen), "{error}");
    assert_eq!(stage.backend.count(), 0);
    let number = stage.running().await;
    let look = WriteStdin {
        view: View::Screen,
        ..write(number, "")
    };
    let error = stage.exec.write_stdin(look).await.unwrap_err();
    assert_eq!(error, WriteStdinError::NoScreen(number));
    stage.backend.next(|fake| {
        fake.writes(OutputStream::Pty, "\x1b[2J\x1b[2;3Hmenu\x1b[5;1H");
    });
    let tty = ExecCommand {
        tty: true,
        ..screen
    };
    let output = stage.run(tty).await;
    let shown = "\n  menu\n[cursor at row 5, column 1]\n";
    assert_eq!(output.transcript.text, shown);
    let number = output.running.unwrap();
    let text = stage.look(number).await.unwrap().transcript.text;
    assert_eq!(text, "", "what the screen showed is not shown again");
}

#[tokio::test(start_paused = true)]
async fn a_write_over_a_slow_network_is_no_failure_and_its_answer_is_waited_for() {
    let stage = Stage::new();
    let number = stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    let latency = Duration::from_millis(400);
    fake.is_far_away(latency);
    let (output, ()) = tokio::join!(stage.exec.write_stdin(write(number, "x")), async {
        tokio::time::sleep(latency + Duration::from_millis(100)).await;
        fake.prints("answer");
    });
    let output = output.unwrap();
    assert_eq!(seen(&output), ("answer", None, true));
    assert_eq!(output.wall_time, latency + Duration::from_millis(250));
}

#[tokio::test(start_paused = true)]
async fn a_screen_says_how_many_lines_it_has_lost() {
    let stage = Stage::new();
    stage.backend.next(|fake| {
        let lines: String = (0..100).map(|line| format!("{line}\r\n")).collect();
        fake.writes(OutputStream::Pty, lines);
    });
    let screen = ExecCommand {
        view: View::Screen,
        tty: true,
        ..command()
    };
    let output = stage.run(screen).await;
    let (number, text) = (output.running.unwrap(), output.transcript.text);
    let lost =
        "[77 lines have scrolled off the screen since the last call and are not shown]\n77\n";
    assert!(text.starts_with(lost), "{text}");
    stage.exec.was_not_received(&command().call_id);
    let look = WriteStdin {
        view: View::Screen,
        ..write(number, "")
    };
    let again = stage.exec.write_stdin(look.clone()).await.unwrap();
    assert_eq!(again.transcript.text, text);
    let later = stage.exec.write_stdin(look).await.unwrap();
    assert!(later.transcript.text.starts_with("77\n"));
}
