//! Event order and limits, and eviction of commands.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_core::output_log::OutputChunk;
use exec_wire::{id::OutputSeq, process::OutputStream};
use tokio::task::yield_now;

use super::{ExecFixture, command, quick, write};
use crate::unified::{
    CommandProgram, ExecCommand, ExecCommandError, OutputView, UnifiedExecSettings,
    UnrestrictedPolicy, WriteStdinError, output_buffers::OutputBuffers,
};

#[tokio::test(start_paused = true)]
async fn events_are_ordered() {
    let fixture = ExecFixture::new();
    fixture.backend.script_next(|fake| fake.print("one\n"));
    let call = ExecCommand {
        program: CommandProgram::Shell {
            line: "echo one".to_owned(),
            shell: None,
            login: true,
        },
        ..command()
    };
    let number = fixture.run(call).await.running.unwrap();
    let (_, fake) = fixture.backend.started(0).await;
    fixture.exec.write_stdin(write(number, "go")).await.unwrap();
    fake.print_to(OutputStream::Stderr, "two\n");
    fake.exit(0);
    fake.close();
    fixture.look(number).await.unwrap();
    let events = fixture.events.lines();
    assert_eq!(
        events,
        [
            "c begin 1 /bin/sh -lc echo one in file:///work",
            "c Stdout one\n",
            "c stdin 1 go",
            "c Stderr two\n",
            "c end 1 Ok(0) \"one\\ntwo\\n\" 10250ms",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn output_events_are_bounded_in_size_and_number() {
    let settings = UnifiedExecSettings {
        delta_bytes: 4,
        max_deltas: 3,
        retained_bytes: 8,
        ..UnifiedExecSettings::default()
    };
    let fixture = ExecFixture::with(settings, std::sync::Arc::new(UnrestrictedPolicy));
    fixture.backend.script_next(|fake| {
        fake.print("abcdef");
        fake.print("ghijkl");
        fake.print("mnop");
        fake.exit(0);
        fake.close();
    });
    fixture.run(command()).await;
    let events = fixture.events.lines();
    let expected = ["c Stdout abcd", "c Stdout ef", "c Stdout ghij"];
    assert_eq!(events[1..4], expected);
    assert_eq!(events.len(), 5);
    let truncated = r#""abcd\n[... 2 tokens (8 bytes) left out ...]\nmnop""#;
    assert!(events[4].contains(truncated), "{events:?}");
}

#[test]
fn lost_output_is_noted() {
    let mut buffers = OutputBuffers::new(1000, None);
    for (seq, text) in [(1, "one"), (5, "five")] {
        buffers.push(&OutputChunk {
            seq: OutputSeq(seq),
            stream: OutputStream::Stdout,
            data: Bytes::from_static(text.as_bytes()),
        });
    }
    let text = buffers.take(OutputView::Plain, 1000).text;
    assert_eq!(
        text,
        "one\n[... 3 pieces of output were lost on the way ...]\nfive"
    );
}

#[tokio::test(start_paused = true)]
async fn stdin_event_precedes_the_exit_it_causes() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    // It responds late, as over a network, and has exited by then.
    let latency = Duration::from_millis(400);
    fake.delay_writes(latency);
    let (output, ()) = tokio::join!(fixture.exec.write_stdin(write(number, "quit")), async {
        tokio::time::sleep(latency / 2).await;
        fake.exit(0);
        fake.close();
    });
    assert_eq!(output.unwrap().exit.unwrap().code, 0);
    let events = fixture.events.lines();
    let [_, stdin, end] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(stdin, "c stdin 1 quit");
    assert!(end.starts_with("c end 1"), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn poll_is_reported_only_for_a_running_command() {
    let fixture = ExecFixture::new();
    let number = fixture.running().await;
    let (_, fake) = fixture.backend.started(0).await;
    fixture.look(number).await.unwrap();
    assert_eq!(fixture.events.lines()[1..], ["c stdin 1 "]);
    fake.exit(0);
    fake.close();
    fixture.events.wait_for_count(3).await;
    fixture.look(number).await.unwrap();
    assert_eq!(fixture.events.lines().len(), 3);
}

fn fixture(max: usize, protected: usize) -> ExecFixture {
    let settings = UnifiedExecSettings {
        max_processes: NonZeroUsize::new(max).unwrap(),
        protected_processes: protected,
        ..UnifiedExecSettings::default()
    };
    ExecFixture::with(settings, Arc::new(UnrestrictedPolicy))
}

#[tokio::test(start_paused = true)]
async fn least_recently_used_command_is_evicted_and_its_end_reported() {
    let fixture = fixture(3, 1);
    let [first, second, _] = [
        fixture.running().await,
        fixture.running().await,
        fixture.running().await,
    ];
    fixture
        .exec
        .write_stdin(write(first, "still here"))
        .await
        .unwrap();
    fixture.running().await;
    let error = fixture.look(second).await.unwrap_err();
    let three = NonZeroUsize::new(3).unwrap();
    assert_eq!(error, WriteStdinError::Evicted(second, three));
    assert_eq!(fixture.exec.terminate(second).await.unwrap_err(), error);
    let events = fixture.events.lines();
    assert!(
        events
            .iter()
            .any(|line| line.starts_with("c end 2 Ok(143)")),
        "{events:?}"
    );
    assert_eq!(fixture.exec.processes().len(), 3);
    fixture.look(first).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ended_command_is_evicted_first_unless_recently_used() {
    let fixture = fixture(4, 2);
    for _ in 0..4 {
        fixture.running().await;
    }
    for ended in [1, 3] {
        let (_, fake) = fixture.backend.started(ended).await;
        fake.exit(0);
        fake.close();
    }
    let numbers = |fixture: &ExecFixture| -> Vec<u64> {
        let processes = fixture.exec.processes();
        processes.iter().map(|process| process.number.0).collect()
    };
    fixture.running().await;
    assert_eq!(numbers(&fixture), [1, 3, 4, 5]);
    fixture.running().await;
    assert_eq!(
        numbers(&fixture),
        [3, 4, 5, 6],
        "4 has ended, but was among the last two"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_if_no_command_can_be_evicted() {
    let fixture = fixture(1, 0);
    let (first, ()) = tokio::join!(fixture.run(command()), async {
        fixture.backend.started(0).await;
        yield_now().await;
        let refused = fixture.exec.exec_command(quick()).await.unwrap_err();
        assert!(matches!(refused, ExecCommandError::Full(_)), "{refused}");
    });
    assert!(first.running.is_some());
    assert_eq!(fixture.backend.start_count(), 1);
    fixture.running().await;
    assert_eq!(fixture.backend.start_count(), 2);
}
