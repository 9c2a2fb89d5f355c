//! What is let go of is ended; and many run at once.

use std::{path::PathBuf, pin::pin, sync::Arc, time::Duration};

use exec_core::log::Event;
use exec_env::command::Command;
use futures_util::{FutureExt, StreamExt, future::join_all};

use crate::{
    cases::ending::tree,
    scratch::Scratch,
    subject::{Subject, piped},
    within::within,
};

/// How often processes are looked for, where nobody tells when they are gone.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub async fn dropping_the_last_handle_kills_the_tree(subject: &Subject) {
    let scratch = Scratch::new();
    let lifeline = scratch.lifeline();
    let running = tree(subject, &lifeline).await;
    let clone = Arc::clone(&running.process);
    drop(running);
    drop(clone);
    lifeline.gone().await;
}

pub async fn a_stream_outlives_the_handle_and_tells_the_end(subject: &Subject) {
    let mut running = subject
        .start(subject.sh("echo ready; exec sleep 1000", &[]))
        .await;
    running.until_says("ready").await;
    let events = running.into_events();
    let rest = within("the stream ends", events.collect::<Vec<_>>()).await;
    assert!(matches!(&rest[..], [Event::Exited(_, exit), Event::Closed(_)] if exit.code == 137));
}

pub async fn dropping_the_handle_kills_what_an_exited_process_left(subject: &Subject) {
    let scratch = Scratch::new();
    let lifeline = scratch.lifeline();
    let script = r#"exec 9>"$1"; setsid sleep 1000 & echo held >&9"#;
    let mut running = subject.start(subject.sh(script, &[lifeline.path()])).await;
    lifeline.held().await;
    running.exit().await;
    drop(running);
    lifeline.gone().await;
}

pub async fn dropping_a_start_leaves_nothing_running(subject: &Subject) {
    const MARK: &str = "EXEC_CONFORMANCE_MARK";
    let mark = format!("{}", std::process::id());
    for polls in 0..20 {
        let mut command = subject.command(&["sleep", "1000"]);
        command.env.insert(MARK.to_owned(), mark.clone());
        let mut start = pin!(subject.backend.start(command));
        for _ in 0..polls {
            // Held long enough for this to matter, it runs: then it is dropped as a handle.
            if start.as_mut().now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    // Whatever was under way before this one is settled when it has ended.
    assert_eq!(
        subject
            .start(subject.sh("exit 0", &[]))
            .await
            .finish()
            .await
            .code(),
        0
    );
    let entry = format!("{MARK}={mark}");
    within("all are gone", async {
        while !with_environment(&entry).is_empty() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    })
    .await;
}

pub async fn thirty_two_run_at_once(subject: &Subject) {
    let starts = (0..32).map(|number: u32| {
        let script = r#"read line; echo "$1 $line"; exit "$1""#;
        subject.start(piped(subject.sh(script, &[&number.to_string()])))
    });
    let all = join_all(starts).await;
    let finishes = (0..).zip(all).map(|(number, running)| async move {
        running.write(b"go\n").await;
        let told = running.finish().await;
        assert_eq!(
            (told.text(), told.code()),
            (format!("{number} go\n"), number)
        );
    });
    join_all(finishes).await;
}

pub async fn a_command_is_over_before_anybody_looks(subject: &Subject) {
    let commands: Vec<Command> = (0..16).map(|_| subject.sh("echo done", &[])).collect();
    for command in commands {
        let told = subject.start(command).await.finish().await;
        assert_eq!((told.text().as_str(), told.code()), ("done\n", 0));
    }
}

/// Returns the processes of this machine whose environment has this entry.
fn with_environment(entry: &str) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|process| process.path());
    let has = |process: &PathBuf| {
        // What is gone, or another account's, cannot be read and is none of ours.
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == entry.as_bytes())
    };
    processes.filter(has).collect()
}
