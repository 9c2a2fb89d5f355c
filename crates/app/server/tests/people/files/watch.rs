//! Tests of `watch`.

use std::{fs, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout},
};

use crate::{
    files::{CopyFixture, write},
    test_user::within_timeout,
};

/// A running watch and the output of its command.
struct WatchRun {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Replaces a file atomically, so that there is one change.
fn put(fixture: &CopyFixture, name: &str, content: &str) {
    write(&fixture.local_path("new"), content);
    fs::rename(fixture.local_path("new"), fixture.remote_path(name)).unwrap();
}

impl WatchRun {
    fn start(fixture: &CopyFixture, script: &str) -> Self {
        Self::below(fixture, "", script)
    }

    fn below(fixture: &CopyFixture, name: &str, script: &str) -> Self {
        Self::with(fixture, name, &[], script)
    }

    fn with(fixture: &CopyFixture, name: &str, flags: &[&str], script: &str) -> Self {
        let root = fixture.remote_path(name);
        let root = root.to_str().unwrap();
        let line = [
            flags,
            &["--debounce", "20ms", "-C", root, "sh", "-c", script],
        ]
        .concat();
        let mut command = fixture.user.command(fixture.line("watch", &line));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn says(&mut self, expected: &str) {
        let line = within_timeout(self.lines.next_line()).await.unwrap();
        assert_eq!(line.as_deref(), Some(expected));
    }

    /// Presses Ctrl-C and asserts that nothing more was printed.
    async fn end(self) {
        self.end_by(Signal::INT).await;
    }

    async fn end_by(mut self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
        assert_eq!(within_timeout(self.lines.next_line()).await.unwrap(), None);
        let ended = within_timeout(self.child.wait()).await.unwrap();
        assert_eq!(ended.code(), Some(128 + signal.as_raw()));
    }
}

#[tokio::test]
async fn watch_runs_at_once_and_after_each_relevant_change() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("file"), "one");
    write(&fixture.remote_path(".gitignore"), "*.log\n");
    fs::create_dir(fixture.remote_path(".git")).unwrap();
    let mut rerun = WatchRun::start(&fixture, "cat file; echo; test -e file");
    rerun.says("one").await;
    put(&fixture, "file", "two");
    rerun.says("two").await;
    // Neither change counts. Another watch shows when their events have arrived.
    let mut other = WatchRun::below(&fixture, ".git", "echo seen");
    other.says("seen").await;
    write(&fixture.remote_path("some.log"), "");
    write(&fixture.remote_path(".git/index"), "");
    other.says("seen").await;
    put(&fixture, "file", "three");
    rerun.says("three").await;
    rerun.end().await;
}

#[tokio::test]
async fn restart_terminates_a_running_command() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("file"), "one");
    let script = "cat file; echo; exec sleep 1000";
    let mut rerun = WatchRun::with(&fixture, "", &["--restart"], script);
    for content in ["two", "three", "four", "five"] {
        rerun
            .says(&fs::read_to_string(fixture.remote_path("file")).unwrap())
            .await;
        put(&fixture, "file", content);
    }
    rerun.says("five").await;
    // An exited command is rerun as without the option.
    put(&fixture, "file", "done");
    rerun.says("done").await;
    rerun.end().await;
}

#[tokio::test]
async fn watch_globs_filter_changes() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("a.txt"), "one");
    let flags = ["--glob", "*.txt", "--ignore", "tmp.txt"];
    let mut rerun = WatchRun::with(&fixture, "", &flags, "cat a.txt; echo");
    rerun.says("one").await;
    let mut other = WatchRun::start(&fixture, "echo seen");
    other.says("seen").await;
    write(&fixture.remote_path("notes.md"), "");
    write(&fixture.remote_path("tmp.txt"), "");
    // The other watch has received the events.
    other.says("seen").await;
    put(&fixture, "a.txt", "two");
    rerun.says("two").await;
    rerun.end().await;
    let wrong = fixture.run("watch", &["--glob", "a{b", "true"]).await;
    wrong.failed(2, &["`a{b`"]);
}

#[tokio::test]
async fn own_writes_do_not_cause_endless_reruns() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("file"), "one");
    let mut rerun = WatchRun::start(&fixture, "cat file; echo; date +%N >out");
    // The first two runs cannot yet be attributed to the command.
    for _ in 0..3 {
        rerun.says("one").await;
    }
    put(&fixture, "file", "two");
    rerun.says("two").await;
    put(&fixture, "file", "three");
    rerun.says("three").await;
    rerun.end().await;
}

#[tokio::test]
async fn failed_command_is_rerun_and_ctrl_c_ends_a_running_one() {
    let fixture = CopyFixture::new().await;
    // The printed content was read: the next one is for the next run.
    write(&fixture.remote_path("file"), "echo runs; exit 7");
    let mut rerun = WatchRun::start(&fixture, ". ./file");
    rerun.says("runs").await;
    // `exec`, because a shell that receives SIGINT while starting a child waits for it.
    put(&fixture, "file", "echo waits; exec sleep 1000");
    rerun.says("waits").await;
    rerun.end().await;
}

#[tokio::test]
async fn every_termination_signal_ends_watch() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("file"), "");
    for signal in [Signal::TERM, Signal::HUP, Signal::QUIT] {
        // One waits for changes, one collects them, and one has a running command.
        let mut idle = WatchRun::start(&fixture, "echo ran");
        idle.says("ran").await;
        put(&fixture, "file", "more");
        idle.says("ran").await;
        idle.end_by(signal).await;
        let mut running = WatchRun::start(&fixture, "echo runs; exec sleep 1000");
        running.says("runs").await;
        running.end_by(signal).await;
    }
}

#[tokio::test]
async fn watch_ends_when_stdout_is_closed() {
    let fixture = CopyFixture::new().await;
    write(&fixture.remote_path("file"), "one");
    let mut rerun = WatchRun::start(&fixture, "cat file; echo");
    rerun.says("one").await;
    drop(rerun.lines);
    put(&fixture, "file", "two");
    let ended = within_timeout(rerun.child.wait()).await.unwrap();
    assert_eq!(ended.code(), Some(128 + Signal::PIPE.as_raw()));
}

#[tokio::test]
async fn watching_a_missing_path_fails() {
    let fixture = CopyFixture::new().await;
    let none = fixture.remote_path("none");
    let line = ["--path", none.to_str().unwrap(), "true"];
    fixture
        .run("watch", &line)
        .await
        .failed(66, &["cannot watch", "none"]);
    fixture
        .run("watch", &["no-such-program-here"])
        .await
        .failed(127, &["no-such-program-here"]);
}
