//! `watch`: a command that runs again when files change.

use std::{fs, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout},
};

use super::{Scene, write};
use crate::cast::soon;

/// A watch, and what its command prints.
struct Rerun {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Puts a file in its place in one step, so that there is one change.
fn put(scene: &Scene, name: &str, content: &str) {
    write(&scene.here("new"), content);
    fs::rename(scene.here("new"), scene.there(name)).unwrap();
}

impl Rerun {
    fn start(scene: &Scene, script: &str) -> Self {
        Self::below(scene, "", script)
    }

    fn below(scene: &Scene, name: &str, script: &str) -> Self {
        Self::with(scene, name, &[], script)
    }

    fn with(scene: &Scene, name: &str, flags: &[&str], script: &str) -> Self {
        let root = scene.there(name);
        let root = root.to_str().unwrap();
        let line = [
            flags,
            &["--debounce", "20ms", "-C", root, "sh", "-c", script],
        ]
        .concat();
        let mut command = scene.person.command(scene.line("watch", &line));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn says(&mut self, expected: &str) {
        let line = soon(self.lines.next_line()).await.unwrap();
        assert_eq!(line.as_deref(), Some(expected));
    }

    /// Presses Ctrl-C, and asserts that nothing more was printed.
    async fn end(self) {
        self.end_by(Signal::INT).await;
    }

    async fn end_by(mut self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
        assert_eq!(soon(self.lines.next_line()).await.unwrap(), None);
        let ended = soon(self.child.wait()).await.unwrap();
        assert_eq!(ended.code(), Some(128 + signal.as_raw()));
    }
}

#[tokio::test]
async fn a_command_runs_at_once_and_after_each_change_that_counts() {
    let scene = Scene::new().await;
    write(&scene.there("file"), "one");
    write(&scene.there(".gitignore"), "*.log\n");
    fs::create_dir(scene.there(".git")).unwrap();
    let mut rerun = Rerun::start(&scene, "cat file; echo; test -e file");
    rerun.says("one").await;
    put(&scene, "file", "two");
    rerun.says("two").await;
    // Neither of these is worth a run. Somebody else sees when they have been told.
    let mut other = Rerun::below(&scene, ".git", "echo seen");
    other.says("seen").await;
    write(&scene.there("some.log"), "");
    write(&scene.there(".git/index"), "");
    other.says("seen").await;
    put(&scene, "file", "three");
    rerun.says("three").await;
    rerun.end().await;
}

#[tokio::test]
async fn a_command_that_still_runs_is_ended_and_run_again() {
    let scene = Scene::new().await;
    write(&scene.there("file"), "one");
    let script = "cat file; echo; exec sleep 1000";
    let mut rerun = Rerun::with(&scene, "", &["--restart"], script);
    for content in ["two", "three", "four", "five"] {
        rerun
            .says(&fs::read_to_string(scene.there("file")).unwrap())
            .await;
        put(&scene, "file", content);
    }
    rerun.says("five").await;
    // One that has ended is run again as without the option.
    put(&scene, "file", "done");
    rerun.says("done").await;
    rerun.end().await;
}

#[tokio::test]
async fn globs_choose_which_changes_count() {
    let scene = Scene::new().await;
    write(&scene.there("a.txt"), "one");
    let flags = ["--glob", "*.txt", "--ignore", "tmp.txt"];
    let mut rerun = Rerun::with(&scene, "", &flags, "cat a.txt; echo");
    rerun.says("one").await;
    let mut other = Rerun::start(&scene, "echo seen");
    other.says("seen").await;
    write(&scene.there("notes.md"), "");
    write(&scene.there("tmp.txt"), "");
    // Somebody else has been told of them.
    other.says("seen").await;
    put(&scene, "a.txt", "two");
    rerun.says("two").await;
    rerun.end().await;
    let wrong = scene.run("watch", &["--glob", "a{b", "true"]).await;
    wrong.failed(2, &["`a{b`"]);
}

#[tokio::test]
async fn what_the_command_writes_itself_does_not_run_it_for_ever() {
    let scene = Scene::new().await;
    write(&scene.there("file"), "one");
    let mut rerun = Rerun::start(&scene, "cat file; echo; date +%N >out");
    // The first two times it could have been anybody who wrote that.
    for _ in 0..3 {
        rerun.says("one").await;
    }
    put(&scene, "file", "two");
    rerun.says("two").await;
    put(&scene, "file", "three");
    rerun.says("three").await;
    rerun.end().await;
}

#[tokio::test]
async fn a_command_that_fails_is_run_again_and_ctrl_c_ends_one_that_runs() {
    let scene = Scene::new().await;
    // What is printed was read: the next content is for the next run.
    write(&scene.there("file"), "echo runs; exit 7");
    let mut rerun = Rerun::start(&scene, ". ./file");
    rerun.says("runs").await;
    // Nothing is started for it: a shell that gets SIGINT while it starts something waits for that.
    put(&scene, "file", "echo waits; exec sleep 1000");
    rerun.says("waits").await;
    rerun.end().await;
}

#[tokio::test]
async fn every_signal_that_asks_for_the_end_ends_a_watch() {
    let scene = Scene::new().await;
    write(&scene.there("file"), "");
    for signal in [Signal::TERM, Signal::HUP, Signal::QUIT] {
        // One that waits for changes, one that gathers them, one whose command runs.
        let mut idle = Rerun::start(&scene, "echo ran");
        idle.says("ran").await;
        put(&scene, "file", "more");
        idle.says("ran").await;
        idle.end_by(signal).await;
        let mut running = Rerun::start(&scene, "echo runs; exec sleep 1000");
        running.says("runs").await;
        running.end_by(signal).await;
    }
}

#[tokio::test]
async fn a_watch_whose_output_nobody_reads_ends() {
    let scene = Scene::new().await;
    write(&scene.there("file"), "one");
    let mut rerun = Rerun::start(&scene, "cat file; echo");
    rerun.says("one").await;
    drop(rerun.lines);
    put(&scene, "file", "two");
    let ended = soon(rerun.child.wait()).await.unwrap();
    assert_eq!(ended.code(), Some(128 + Signal::PIPE.as_raw()));
}

#[tokio::test]
async fn what_is_not_there_cannot_be_watched() {
    let scene = Scene::new().await;
    let none = scene.there("none");
    let line = ["--path", none.to_str().unwrap(), "true"];
    scene
        .run("watch", &line)
        .await
        .failed(66, &["cannot watch", "none"]);
    scene
        .run("watch", &["no-such-program-here"])
        .await
        .failed(127, &["no-such-program-here"]);
}
