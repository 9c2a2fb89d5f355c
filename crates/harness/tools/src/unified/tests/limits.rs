//! How many commands are kept, and which make room.

use std::{num::NonZeroUsize, sync::Arc};

use tokio::task::yield_now;

use super::stage::{Stage, command, quick, write};
use crate::unified::{ExecCommandError, Settings, Unrestricted, WriteStdinError};

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
