//! How commands end, and who learns of it.

use std::{sync::Arc, time::Duration};

use exec_env::{
    disconnect::Disconnect,
    process::{OpenError, ProcessError, ProcessNumber},
};
use tokio::time::{Instant, timeout};

use super::{Stage, command, seen, write};
use crate::unified::{
    Abandoned, CallId, ExecCommand, ExecCommandError, ProcessState, Settings, Unrestricted,
    WaitFor, WriteStdin, WriteStdinError,
};

const MOMENT: Duration = Duration::from_millis(100);

/// A call that ends a command.
fn by() -> CallId {
    CallId("t".to_owned())
}

fn unknown(number: ProcessNumber) -> WriteStdinError {
    OpenError::Unknown(number).into()
}

#[tokio::test(start_paused = true)]
async fn an_end_between_calls_is_told_and_then_shown_once() {
    let stage = Stage::new();
    let number = stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    fake.prints("last words");
    fake.exits(4);
    fake.closes();
    let told = stage.told.until(3).await;
    assert_eq!(told[2], "c end 1 Ok(4) \"last words\" 250ms");
    let state = ProcessState {
        has_exited: true,
        exit_code: Some(4),
        failure: None,
    };
    assert_eq!(stage.exec.processes()[0].state, state);
    let output = stage.look(number).await.unwrap();
    assert_eq!(seen(&output), ("last words", Some(4), false));
    assert_eq!(output.wall_time, Duration::ZERO);
    assert_eq!(stage.look(number).await.unwrap_err(), unknown(number));
    assert!(fake.is_dropped(), "what it left behind ends with it");
}

#[tokio::test(start_paused = true)]
async fn output_that_stays_open_is_not_waited_for_long() {
    let stage = Stage::new();
    stage.backend.next(|fake| {
        fake.prints("started a daemon\n");
        fake.exits(0);
    });
    let output = stage.run(command()).await;
    assert_eq!(seen(&output), ("started a daemon\n", Some(0), false));
    assert_eq!(output.wall_time, Duration::from_millis(250));
    let told = stage.told.lines();
    assert!(told[2].starts_with("c end 1 Ok(0)"), "{told:?}");
    let (_, fake) = stage.backend.started(0).await;
    assert!(fake.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_before_it_told_a_number_ends_its_command() {
    let stage = Stage::new();
    let dropped = timeout(MOMENT, stage.exec.exec_command(command())).await;
    assert!(dropped.is_err());
    let (_, fake) = stage.backend.started(0).await;
    let told = stage.told.until(2).await;
    assert!(told[1].starts_with("c end 1 Ok(143)"), "{told:?}");
    assert!(stage.exec.processes().is_empty());
    tokio::task::yield_now().await;
    assert!(fake.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_call_is_dropped_runs_on_if_it_is_to() {
    let settings = Settings {
        abandoned: Abandoned::RunsOn,
        ..Settings::default()
    };
    let stage = Stage::with(settings, Arc::new(Unrestricted));
    stage.backend.next(|fake| fake.prints("kept"));
    let dropped = timeout(MOMENT, stage.exec.exec_command(command())).await;
    assert!(dropped.is_err());
    let number = stage.exec.processes()[0].number;
    let output = stage.look(number).await.unwrap();
    assert_eq!(seen(&output), ("kept", None, true));
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_is_told_behind_what_was_written() {
    let stage = Stage::new();
    let number = stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    fake.prints("half");
    let lost = ProcessError::Disconnected(Disconnect::Transport("cut".to_owned()));
    fake.fails(lost.clone());
    let output = stage.look(number).await.unwrap();
    assert_eq!(seen(&output), ("half", None, false));
    assert_eq!(output.failure, Some(lost));
    let told = stage.told.lines();
    let end = told.last().unwrap();
    assert!(
        end.contains("end 1 Err(") && end.contains("cut"),
        "{told:?}"
    );
    assert_eq!(stage.look(number).await.unwrap_err(), unknown(number));
}

#[tokio::test(start_paused = true)]
async fn terminating_shows_the_last_output() {
    let stage = Stage::new();
    let number = stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    fake.prints("bye");
    let output = stage.exec.terminate(&by(), number).await.unwrap();
    assert_eq!(seen(&output), ("bye", Some(143), false));
    assert_eq!(
        stage.exec.terminate(&by(), number).await.unwrap_err(),
        unknown(number)
    );
}

#[tokio::test(start_paused = true)]
async fn terminating_also_ends_a_call_that_waits() {
    let stage = Stage::new();
    let number = stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    fake.prints("seen once");
    let (looked, terminated) = tokio::join!(stage.look(number), async {
        tokio::task::yield_now().await;
        let busy = stage.exec.write_stdin(write(number, "x")).await;
        assert_eq!(busy.unwrap_err(), OpenError::Busy(number).into());
        stage.exec.terminate(&by(), number).await
    });
    assert_eq!(seen(&looked.unwrap()), ("seen once", Some(143), false));
    assert_eq!(seen(&terminated.unwrap()), ("", Some(143), false));
}

#[tokio::test(start_paused = true)]
async fn a_command_that_cannot_be_killed_is_said_so_and_kept() {
    let stage = Stage::new();
    let number = stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    fake.is_stubborn();
    let began = Instant::now();
    let error = stage.exec.terminate(&by(), number).await.unwrap_err();
    assert_eq!(error, WriteStdinError::NotEnding(number));
    assert_eq!(began.elapsed(), Duration::from_millis(5500));
    assert_eq!(stage.exec.processes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn shutting_down_ends_all_and_takes_no_more() {
    let stage = Stage::new();
    for _ in 0..3 {
        stage.running().await;
    }
    stage.exec.shut_down().await;
    let told = stage.told.lines();
    assert_eq!(
        told.iter().filter(|line| line.contains(" end ")).count(),
        3,
        "{told:?}"
    );
    assert!(stage.exec.processes().is_empty());
    let refused = stage.exec.exec_command(command()).await.unwrap_err();
    assert!(matches!(refused, ExecCommandError::ShutDown), "{refused}");
    assert_eq!(stage.backend.count(), 3, "it was not even started");
}

#[tokio::test(start_paused = true)]
async fn dropping_everything_ends_the_commands_and_tells_so() {
    let stage = Stage::new();
    stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    let Stage { exec, told, .. } = stage;
    drop(exec);
    let told = told.until(2).await;
    assert!(told[1].starts_with("c end 1 Ok(137)"), "{told:?}");
    assert!(fake.is_dropped());
}

#[tokio::test]
async fn something_that_never_stops_writing_does_not_put_off_the_end() {
    let settings = Settings {
        close_grace: MOMENT,
        ..Settings::default()
    };
    let stage = Stage::with(settings, Arc::new(Unrestricted));
    stage.backend.next(|fake| {
        fake.exits(0);
        let fake = fake.clone();
        std::thread::spawn(move || {
            // Something of it is always there to be read.
            let began = std::time::Instant::now();
            while !fake.is_dropped() && began.elapsed() < 20 * MOMENT {
                for _ in 0..100 {
                    fake.prints("x\n");
                }
                std::thread::sleep(Duration::from_micros(10));
            }
        });
    });
    let output = stage.run(command()).await;
    assert_eq!(seen(&output).1, Some(0));
    assert!(output.wall_time < 10 * MOMENT, "{:?}", output.wall_time);
}

#[tokio::test(start_paused = true)]
async fn what_comes_slowly_behind_the_exit_is_not_cut_off() {
    let stage = Stage::new();
    stage.backend.next(|fake| fake.exits(0));
    let (output, ()) = tokio::join!(stage.run(command()), async {
        let (_, fake) = stage.backend.started(0).await;
        for part in ["a", "b", "c"] {
            tokio::time::sleep(2 * MOMENT).await;
            fake.prints(part);
        }
        fake.closes();
    });
    assert_eq!(seen(&output), ("abc", Some(0), false));
}

fn call(name: &str) -> CallId {
    CallId(name.to_owned())
}

#[tokio::test(start_paused = true)]
async fn output_that_was_not_received_is_shown_again_before_what_came_since() {
    let stage = Stage::new();
    stage.backend.next(|fake| fake.prints("one\n"));
    let number = stage.run(command()).await.running.unwrap();
    let (_, fake) = stage.backend.started(0).await;
    stage.exec.was_not_received(&call("c"));
    fake.prints("two\n");
    let output = stage.look(number).await.unwrap();
    assert_eq!(seen(&output), ("one\ntwo\n", None, true));
    let output = stage.look(number).await.unwrap();
    assert_eq!(seen(&output), ("", None, true), "this one was received");
    stage.exec.was_not_received(&call("c"));
    let output = stage.look(number).await.unwrap();
    assert_eq!(seen(&output), ("", None, true), "it is no longer the last");
}

#[tokio::test(start_paused = true)]
async fn what_is_shown_again_is_waited_for_as_if_it_were_new() {
    let stage = Stage::new();
    stage.backend.next(|fake| fake.prints("ready\n"));
    let number = stage.run(command()).await.running.unwrap();
    stage.exec.was_not_received(&call("c"));
    for wait in [
        WaitFor::Bytes(6),
        WaitFor::Pattern(regex::bytes::Regex::new("ready").unwrap()),
    ] {
        let look = WriteStdin {
            wait,
            ..write(number, "")
        };
        let output = stage.exec.write_stdin(look).await.unwrap();
        assert_eq!(seen(&output), ("ready\n", None, true));
        assert!(output.wall_time.is_zero());
        stage.exec.was_not_received(&call("w"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_was_not_received_is_known_until_it_is() {
    let stage = Stage::new();
    stage.backend.next(|fake| {
        fake.prints("done\n");
        fake.exits(3);
        fake.closes();
    });
    let output = stage.run(command()).await;
    assert_eq!(seen(&output), ("done\n", Some(3), false));
    assert!(stage.exec.processes().is_empty());
    let (_, fake) = stage.backend.started(0).await;
    assert!(fake.is_dropped(), "what it left behind has ended");
    stage.exec.was_not_received(&call("c"));
    let [summary] = &stage.exec.processes()[..] else {
        panic!("not known");
    };
    assert_eq!(summary.state.exit_code, Some(3));
    let number = summary.number;
    // The one that shows it again may not be received, either.
    for by in ["w", "t"] {
        let output = stage.look(number).await.unwrap();
        assert_eq!(seen(&output), ("done\n", Some(3), false));
        assert!(stage.look(number).await.is_err());
        stage.exec.was_not_received(&call("w"));
        let output = stage.exec.terminate(&call(by), number).await.unwrap();
        assert_eq!(seen(&output), ("done\n", Some(3), false));
        stage.exec.was_not_received(&call(by));
    }
}

#[tokio::test(start_paused = true)]
async fn ends_that_were_received_do_not_drive_out_one_that_was_not() {
    let stage = Stage::new();
    for number in 0..100 {
        stage.backend.next(|fake| {
            fake.exits(0);
            fake.closes();
        });
        let one = ExecCommand {
            call_id: call(&number.to_string()),
            ..command()
        };
        stage.run(one).await;
        if number == 0 {
            stage.exec.was_not_received(&call("0"));
        }
    }
    assert_eq!(stage.exec.processes().len(), 1);
    stage.exec.was_not_received(&call("50"));
    assert_eq!(stage.exec.processes().len(), 1, "it is forgotten");
    for number in 80..100 {
        stage.exec.was_not_received(&call(&number.to_string()));
    }
    assert_eq!(stage.exec.processes().len(), 16, "there is a bound");
}
