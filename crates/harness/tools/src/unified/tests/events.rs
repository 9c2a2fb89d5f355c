//! What a harness is told, and in which order.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_core::log::OutputChunk;
use exec_wire::{id::OutputSeq, process::OutputStream};
use tokio::task::yield_now;

use super::{Stage, command, quick, write};
use crate::unified::{
    CallId, ExecCommand, ExecCommandError, Program, Settings, Unrestricted, View, WriteStdinError,
    output_buffers::Gathered,
};

#[tokio::test(start_paused = true)]
async fn events_come_in_their_order() {
    let stage = Stage::new();
    stage.backend.next(|fake| fake.prints("one\n"));
    let call = ExecCommand {
        program: Program::Shell {
            line: "echo one".to_owned(),
            shell: None,
            login: true,
        },
        ..command()
    };
    let number = stage.run(call).await.running.unwrap();
    let (_, fake) = stage.backend.started(0).await;
    stage.exec.write_stdin(write(number, "go")).await.unwrap();
    fake.writes(OutputStream::Stderr, "two\n");
    fake.exits(0);
    fake.closes();
    stage.look(number).await.unwrap();
    let told = stage.told.lines();
    assert_eq!(
        told,
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
async fn output_is_told_in_bounded_pieces_and_in_bounded_number() {
    let settings = Settings {
        delta_bytes: 4,
        max_deltas: 3,
        retained_bytes: 8,
        ..Settings::default()
    };
    let stage = Stage::with(settings, std::sync::Arc::new(Unrestricted));
    stage.backend.next(|fake| {
        fake.prints("abcdef");
        fake.prints("ghijkl");
        fake.prints("mnop");
        fake.exits(0);
        fake.closes();
    });
    stage.run(command()).await;
    let told = stage.told.lines();
    let expected = ["c Stdout abcd", "c Stdout ef", "c Stdout ghij"];
    assert_eq!(told[1..4], expected);
    assert_eq!(told.len(), 5);
    let whole = r#""abcd\n[... 2 tokens (8 bytes) left out ...]\nmnop""#;
    assert!(told[4].contains(whole), "{told:?}");
}

#[test]
fn output_that_was_lost_on_the_way_is_said_to_be() {
    let mut gathered = Gathered::new(1000, None);
    for (seq, text) in [(1, "one"), (5, "five")] {
        gathered.push(&OutputChunk {
            seq: OutputSeq(seq),
            stream: OutputStream::Stdout,
            data: Bytes::from_static(text.as_bytes()),
        });
    }
    let call = CallId("c".to_owned());
    let text = gathered.take(&call, View::Plain, 1000).text;
    assert_eq!(
        text,
        "one\n[... 3 pieces of output were lost on the way ...]\nfive"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_written_is_told_before_the_end_that_it_causes() {
    let stage = Stage::new();
    let number = stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    // It answers late, as over a network, and has ended by then.
    let latency = Duration::from_millis(400);
    fake.is_far_away(latency);
    let (output, ()) = tokio::join!(stage.exec.write_stdin(write(number, "quit")), async {
        tokio::time::sleep(latency / 2).await;
        fake.exits(0);
        fake.closes();
    });
    assert_eq!(output.unwrap().exit.unwrap().code, 0);
    let told = stage.told.lines();
    let [_, stdin, end] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(stdin, "c stdin 1 quit");
    assert!(end.starts_with("c end 1"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_look_is_told_of_a_command_that_runs_and_not_of_one_that_has_ended() {
    let stage = Stage::new();
    let number = stage.running().await;
    let (_, fake) = stage.backend.started(0).await;
    stage.look(number).await.unwrap();
    assert_eq!(stage.told.lines()[1..], ["c stdin 1 "]);
    fake.exits(0);
    fake.closes();
    stage.told.until(3).await;
    stage.look(number).await.unwrap();
    assert_eq!(stage.told.lines().len(), 3);
}

fn stage(max: usize, protected: usize) -> Stage {
    let settings = Settings {
        max_processes: NonZeroUsize::new(max).unwrap(),
        protected_processes: protected,
        ..Settings::default()
    };
    Stage::with(settings, Arc::new(Unrestricted))
}

#[tokio::test(start_paused = true)]
async fn the_one_used_least_recently_makes_room_and_its_end_is_told() {
    let stage = stage(3, 1);
    let [first, second, _] = [
        stage.running().await,
        stage.running().await,
        stage.running().await,
    ];
    stage
        .exec
        .write_stdin(write(first, "still here"))
        .await
        .unwrap();
    stage.running().await;
    let gone = stage.look(second).await.unwrap_err();
    let three = NonZeroUsize::new(3).unwrap();
    assert_eq!(gone, WriteStdinError::MadeRoom(second, three));
    assert_eq!(
        stage
            .exec
            .terminate(&command().call_id, second)
            .await
            .unwrap_err(),
        gone
    );
    let told = stage.told.lines();
    assert!(
        told.iter().any(|line| line.starts_with("c end 2 Ok(143)")),
        "{told:?}"
    );
    assert_eq!(stage.exec.processes().len(), 3);
    stage.look(first).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_has_ended_makes_room_first_unless_it_was_used_last() {
    let stage = stage(4, 2);
    for _ in 0..4 {
        stage.running().await;
    }
    for ended in [1, 3] {
        let (_, fake) = stage.backend.started(ended).await;
        fake.exits(0);
        fake.closes();
    }
    let numbers = |stage: &Stage| -> Vec<u64> {
        let processes = stage.exec.processes();
        processes.iter().map(|process| process.number.0).collect()
    };
    stage.running().await;
    assert_eq!(numbers(&stage), [1, 3, 4, 5]);
    stage.running().await;
    assert_eq!(
        numbers(&stage),
        [3, 4, 5, 6],
        "4 has ended, but was among the last two"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_started_if_nothing_can_make_room() {
    let stage = stage(1, 0);
    let (first, ()) = tokio::join!(stage.run(command()), async {
        stage.backend.started(0).await;
        yield_now().await;
        let refused = stage.exec.exec_command(quick()).await.unwrap_err();
        assert!(matches!(refused, ExecCommandError::Full(_)), "{refused}");
    });
    assert!(first.running.is_some());
    assert_eq!(stage.backend.count(), 1);
    stage.running().await;
    assert_eq!(stage.backend.count(), 2);
}
