//! Ends of commands.

use std::{sync::Arc, time::Duration};

use exec_env::{environment::DisconnectReason, process::ProcessError};
use tokio::time::{Instant, timeout};

use super::{ExecFixture, command, summary, write};
use crate::unified::{
    AbandonedCommand, ExecCommandError, ProcessNumber, UnifiedExecSettings, UnrestrictedPolicy,
    WatchedState, WriteStdinError,
};

const SHORT: Duration = Duration::from_millis(100);

fn unknown(number: ProcessNumber) -> WriteStdinError {
    WriteStdinError::Unknown(number)
}

#[tokio::test(start_paused = true)]
async fn exit_between_calls_is_reported_and_shown_once() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    fake.print("last words");
    fake.exit(4);
    fake.close();
    let events = fixture.events.wait_for_count(3).await;
    assert_eq!(events[2], "c end 1 Ok(4) \"last words\" 250ms");
    let state = WatchedState {
        has_exited: true,
        exit_code: Some(4),
        failure: None,
    };
    assert_eq!(fixture.exec.processes()[0].state, state);
    let output = fixture.look(number).await.unwrap();
    assert_eq!(summary(&output), ("last words", Some(4), false));
    assert_eq!(output.wall_time, Duration::ZERO);
    assert_eq!(fixture.look(number).await.unwrap_err(), unknown(number));
    assert!(
        fake.is_dropped(),
        "its background processes are killed with it"
    );
}

#[tokio::test(start_paused = true)]
async fn open_output_after_exit_is_awaited_briefly() {
    let fixture = ExecFixture::new();
    fixture.backend.script_next(|fake| {
        fake.print("started a daemon\n");
        fake.exit(0);
    });
    let output = fixture.run(command()).await;
    assert_eq!(summary(&output), ("started a daemon\n", Some(0), false));
    assert_eq!(output.wall_time, Duration::from_millis(250));
    let events = fixture.events.lines();
    assert!(events[2].starts_with("c end 1 Ok(0)"), "{events:?}");
    let (_, fake) = fixture.backend.started(0).await;
    assert!(fake.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn dropped_first_call_terminates_its_command() {
    let fixture = ExecFixture::new();
    let dropped = timeout(SHORT, fixture.exec.exec_command(command())).await;
    assert!(dropped.is_err());
    let (_, fake) = fixture.backend.started(0).await;
    let events = fixture.events.wait_for_count(2).await;
    assert!(events[1].starts_with("c end 1 Ok(143)"), "{events:?}");
    assert!(fixture.exec.processes().is_empty());
    tokio::task::yield_now().await;
    assert!(fake.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn dropped_call_keeps_the_command_if_configured() {
    let settings = UnifiedExecSettings {
        abandoned: AbandonedCommand::KeepRunning,
        ..UnifiedExecSettings::default()
    };
    let fixture = ExecFixture::with(settings, Arc::new(UnrestrictedPolicy));
    fixture.backend.script_next(|fake| fake.print("kept"));
    let dropped = timeout(SHORT, fixture.exec.exec_command(command())).await;
    assert!(dropped.is_err());
    let number = fixture.exec.processes()[0].number;
    let output = fixture.look(number).await.unwrap();
    assert_eq!(summary(&output), ("kept", None, true));
}

#[tokio::test(start_paused = true)]
async fn lost_connection_is_reported_after_the_output() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    fake.print("half");
    let lost = ProcessError::Disconnected(DisconnectReason::Transport("cut".to_owned()));
    fake.fail(lost.clone());
    let output = fixture.look(number).await.unwrap();
    assert_eq!(summary(&output), ("half", None, false));
    assert_eq!(output.failure, Some(lost));
    let events = fixture.events.lines();
    let end = events.last().unwrap();
    assert!(
        end.contains("end 1 Err(") && end.contains("cut"),
        "{events:?}"
    );
    assert_eq!(fixture.look(number).await.unwrap_err(), unknown(number));
}

#[tokio::test(start_paused = true)]
async fn terminate_shows_the_last_output() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    fake.print("bye");
    let output = fixture.exec.terminate(number).await.unwrap();
    assert_eq!(summary(&output), ("bye", Some(143), false));
    assert_eq!(
        fixture.exec.terminate(number).await.unwrap_err(),
        unknown(number)
    );
}

#[tokio::test(start_paused = true)]
async fn terminate_ends_a_waiting_call() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    fake.print("seen once");
    let (looked, terminated) = tokio::join!(fixture.look(number), async {
        tokio::task::yield_now().await;
        let busy = fixture.exec.write_stdin(write(number, "x")).await;
        assert_eq!(busy.unwrap_err(), WriteStdinError::Busy(number));
        fixture.exec.terminate(number).await
    });
    assert_eq!(summary(&looked.unwrap()), ("seen once", Some(143), false));
    assert_eq!(summary(&terminated.unwrap()), ("", Some(143), false));
}

#[tokio::test(start_paused = true)]
async fn unkillable_command_is_reported_and_kept() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    fake.ignore_termination();
    let started_at = Instant::now();
    let error = fixture.exec.terminate(number).await.unwrap_err();
    assert_eq!(error, WriteStdinError::NotEnding(number));
    assert_eq!(started_at.elapsed(), Duration::from_millis(5500));
    assert_eq!(fixture.exec.processes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn shut_down_ends_all_commands_and_rejects_new_ones() {
    let fixture = ExecFixture::new();
    for _ in 0..3 {
        fixture.running().await;
    }
    fixture.exec.shut_down().await;
    let events = fixture.events.lines();
    assert_eq!(
        events.iter().filter(|line| line.contains(" end ")).count(),
        3,
        "{events:?}"
    );
    assert!(fixture.exec.processes().is_empty());
    let refused = fixture.exec.exec_command(command()).await.unwrap_err();
    assert!(matches!(refused, ExecCommandError::ShutDown), "{refused}");
    assert_eq!(fixture.backend.start_count(), 3, "it was not even started");
}

#[tokio::test(start_paused = true)]
async fn dropping_unified_exec_ends_commands_and_reports_it() {
    let fixture = ExecFixture::new();
    fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    let ExecFixture { exec, events, .. } = fixture;
    drop(exec);
    let events = events.wait_for_count(2).await;
    assert!(events[1].starts_with("c end 1 Ok(137)"), "{events:?}");
    assert!(fake.is_dropped());
}

#[tokio::test]
async fn endless_background_output_does_not_delay_the_end() {
    let settings = UnifiedExecSettings {
        close_grace: SHORT,
        ..UnifiedExecSettings::default()
    };
    let fixture = ExecFixture::with(settings, Arc::new(UnrestrictedPolicy));
    fixture.backend.script_next(|fake| {
        fake.exit(0);
        let fake = fake.clone();
        std::thread::spawn(move || {
            // There is always output to read.
            let started_at = std::time::Instant::now();
            while !fake.is_dropped() && started_at.elapsed() < 20 * SHORT {
                for _ in 0..100 {
                    fake.print("x\n");
                }
                std::thread::sleep(Duration::from_micros(10));
            }
        });
    });
    let output = fixture.run(command()).await;
    assert_eq!(summary(&output).1, Some(0));
    assert!(output.wall_time < 10 * SHORT, "{:?}", output.wall_time);
}

#[tokio::test(start_paused = true)]
async fn slow_output_after_exit_is_not_lost() {
    let fixture = ExecFixture::new();
    fixture.backend.script_next(|fake| fake.exit(0));
    let (output, ()) = tokio::join!(fixture.run(command()), async {
        let (_, fake) = fixture.backend.started(0).await;
        for part in ["a", "b", "c"] {
            tokio::time::sleep(2 * SHORT).await;
            fake.print(part);
        }
        fake.close();
    });
    assert_eq!(summary(&output), ("abc", Some(0), false));
}
