//! Tests of interrupted copies that are resumed, and of cancelled ones.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use exec_conformance::cutting_proxy::CuttingProxy;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::sleep;

use crate::{
    files::{CopyFixture, names, noise, write},
    test_user::{CommandResult, within_timeout},
};

const SIZE: usize = 256 << 20;
/// Bytes that have been written when the test presses Ctrl-C.
const BEGUN: u64 = 16 << 20;

/// Returns the only partial file in a directory or in a staged tree there.
fn part(directory: &Path) -> Option<PathBuf> {
    let paths = fs::read_dir(directory).ok()?;
    let paths = paths.map(|entry| entry.unwrap().path());
    let is_part = |path: &PathBuf| path.extension().is_some_and(|end| end == "part");
    let found = paths.into_iter().find(is_part)?;
    match found.is_dir() {
        true => part(&found),
        false => Some(found),
    }
}

/// Starts a copy, presses Ctrl-C when part of it is written, and returns the result.
async fn interrupt(fixture: &CopyFixture, line: &[&str], target: &Path) -> CommandResult {
    let mut command = fixture.user.command(fixture.line("cp", line));
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    let started = async {
        // No event reports that a file has reached a size.
        let length = || Some(fs::metadata(part(target)?).ok()?.len());
        while length().unwrap_or_default() < BEGUN {
            sleep(Duration::from_millis(1)).await;
        }
    };
    within_timeout(started).await;
    kill_process(pid, Signal::INT).unwrap();
    within_timeout(child.wait_with_output())
        .await
        .unwrap()
        .into()
}

fn summary(ended: CommandResult) -> Value {
    serde_json::from_str(&ended.expect_success()).unwrap()
}

fn assert_resumed(output: &Value) {
    let (resumed, written) = (
        output["resumedBytes"].as_u64().unwrap(),
        output["writtenBytes"].as_u64().unwrap(),
    );
    assert!(resumed >= BEGUN, "{output}");
    assert_eq!(resumed + written, SIZE as u64, "{output}");
}

#[tokio::test]
async fn interrupted_upload_is_resumed() {
    let fixture = CopyFixture::new().await;
    let content = noise(SIZE);
    fs::write(fixture.local_path("large"), &content).unwrap();
    let target = fixture.remote("");
    let line = ["--json", "large", &target];
    let ended = interrupt(&fixture, &line, fixture.remote_dir.path()).await;
    ended.failed(130, &["interrupted", "again"]);
    let remaining = names(fixture.remote_dir.path());
    assert_eq!(remaining.len(), 1, "{remaining:?}");
    assert!(remaining[0].starts_with(".large.") && remaining[0].ends_with(".part"));
    assert_resumed(&summary(fixture.run("cp", &line).await));
    assert_eq!(names(fixture.remote_dir.path()), ["large"]);
    assert!(fs::read(fixture.remote_path("large")).unwrap() == content);
}

#[tokio::test]
async fn interrupted_download_is_resumed() {
    let fixture = CopyFixture::new().await;
    let content = noise(SIZE);
    fs::write(fixture.remote_path("large"), &content).unwrap();
    fs::write(fixture.local_path("large"), "the old one").unwrap();
    let source = fixture.remote("large");
    let line = ["--json", &source, "."];
    let ended = interrupt(&fixture, &line, &fixture.user.work()).await;
    ended.failed(130, &["interrupted"]);
    assert_eq!(
        fs::read(fixture.local_path("large")).unwrap(),
        b"the old one"
    );
    assert_resumed(&summary(fixture.run("cp", &line).await));
    assert_eq!(names(&fixture.user.work()), ["large"]);
    assert!(fs::read(fixture.local_path("large")).unwrap() == content);
}

#[tokio::test]
async fn partial_file_of_another_content_is_not_resumed() {
    let fixture = CopyFixture::new().await;
    let mut content = noise(SIZE);
    let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let put = |name: &str, content: &[u8]| {
        write(&fixture.local_path(name), content);
        let file = fs::File::options()
            .write(true)
            .open(fixture.local_path(name));
        file.unwrap().set_modified(time).unwrap();
    };
    put("one/large", &content);
    let target = fixture.remote("large");
    let line = ["one/large", &target];
    let ended = interrupt(&fixture, &line, fixture.remote_dir.path()).await;
    ended.failed(130, &["interrupted"]);
    // Same size and time; the change is neither at the beginning nor at the end of the partial
    // file.
    content[9 << 20] ^= 1;
    put("other/large", &content);
    fixture
        .run("cp", &["other/large", &target])
        .await
        .expect_success();
    assert!(fs::read(fixture.remote_path("large")).unwrap() == content);
    content[0] ^= 1;
    put("one/large", &content);
    fixture.run("cp", &line).await.expect_success();
    assert!(fs::read(fixture.remote_path("large")).unwrap() == content);
}

/// Interrupts the copy of a tree, changes the tree, and repeats the command.
async fn resume_tree(fixture: &CopyFixture, line: &[&str], source: &Path, target: &Path) {
    let (large, changed) = (noise(SIZE), noise(5));
    for name in ["a/kept", "a/changed", "a/gone", "a/gone-too/x"] {
        write(&source.join(name), "small");
    }
    fs::write(source.join("large"), &large).unwrap();
    let directory = target.parent().unwrap();
    let ended = interrupt(fixture, line, directory).await;
    ended.failed(130, &["interrupted", "again"]);
    assert!(!target.exists(), "half a tree");
    fs::remove_file(source.join("a/gone")).unwrap();
    fs::remove_dir_all(source.join("a/gone-too")).unwrap();
    fs::write(source.join("a/changed"), &changed).unwrap();
    let later = std::time::UNIX_EPOCH + Duration::from_secs(1_234_567_890);
    let file = fs::File::options()
        .write(true)
        .open(source.join("a/changed"));
    file.unwrap().set_modified(later).unwrap();
    let output = summary(fixture.run("cp", line).await);
    let (resumed, written) = (
        output["resumedBytes"].as_u64().unwrap(),
        output["writtenBytes"].as_u64().unwrap(),
    );
    assert!(resumed >= BEGUN, "{output}");
    assert_eq!(resumed + written, (SIZE + 10) as u64, "{output}");
    let name = target.file_name().unwrap();
    assert_eq!(names(directory), [name.to_str().unwrap()]);
    assert_eq!(names(target), ["a", "large"]);
    assert_eq!(names(&target.join("a")), ["changed", "kept"]);
    assert!(fs::read(target.join("large")).unwrap() == large);
    assert!(fs::read(target.join("a/changed")).unwrap() == changed);
}

#[tokio::test]
async fn interrupted_tree_is_completed_by_the_same_command() {
    let fixture = CopyFixture::new().await;
    fs::create_dir(fixture.remote_path("up")).unwrap();
    let target = fixture.remote("up/tree");
    let line = ["-r", "--json", "tree", &target];
    let (here, there) = (fixture.local_path("tree"), fixture.remote_path("up/tree"));
    resume_tree(&fixture, &line, &here, &there).await;
    fs::create_dir(fixture.local_path("down")).unwrap();
    let source = fixture.remote("tree");
    let line = ["-r", "--json", &source, "down"];
    let (here, there) = (fixture.local_path("down/tree"), fixture.remote_path("tree"));
    resume_tree(&fixture, &line, &there, &here).await;
}

#[tokio::test]
async fn no_resume_restarts_a_tree() {
    let fixture = CopyFixture::new().await;
    write(&fixture.local_path("tree/large"), noise(SIZE));
    let target = fixture.remote("new");
    let line = ["-r", "--json", "--no-resume", "tree", &target];
    interrupt(&fixture, &line, fixture.remote_dir.path()).await;
    let output = summary(fixture.run("cp", &line).await);
    assert_eq!(output["resumedBytes"], 0, "{output}");
    assert_eq!(names(fixture.remote_dir.path()), ["new"]);
}

#[tokio::test]
async fn partial_file_is_used_only_if_it_is_a_prefix_of_the_source() {
    let fixture = CopyFixture::new().await;
    let mut content = noise(SIZE);
    fs::write(fixture.local_path("large"), &content).unwrap();
    let target = fixture.remote("");
    let line = ["--json", "large", &target];
    interrupt(&fixture, &line, fixture.remote_dir.path()).await;
    // Another process wrote into the partial file.
    let remaining = part(fixture.remote_dir.path()).unwrap();
    let mut broken = fs::read(&remaining).unwrap();
    let last = broken.len() - 1;
    broken[last] ^= 1;
    fs::write(&remaining, broken).unwrap();
    let output = summary(fixture.run("cp", &line).await);
    assert_eq!(output["resumedBytes"], 0, "{output}");
    assert!(fs::read(fixture.remote_path("large")).unwrap() == content);
    // The source differs from that of the partial file.
    fs::remove_file(fixture.remote_path("large")).unwrap();
    interrupt(&fixture, &line, fixture.remote_dir.path()).await;
    content[0] ^= 1;
    fs::write(fixture.local_path("large"), &content).unwrap();
    let output = summary(fixture.run("cp", &line).await);
    assert_eq!(output["resumedBytes"], 0, "{output}");
    assert!(fs::read(fixture.remote_path("large")).unwrap() == content);
}

#[tokio::test]
async fn no_resume_ignores_partial_files() {
    let fixture = CopyFixture::new().await;
    fs::write(fixture.local_path("large"), noise(SIZE)).unwrap();
    let target = fixture.remote("");
    let line = ["--json", "--no-resume", "large", &target];
    interrupt(&fixture, &line, fixture.remote_dir.path()).await;
    let output = summary(fixture.run("cp", &line).await);
    assert_eq!(output["resumedBytes"], 0, "{output}");
    assert_eq!(output["writtenBytes"], SIZE, "{output}");
}

#[tokio::test]
async fn copy_survives_repeated_disconnects() {
    let fixture = CopyFixture::new().await;
    let address: SocketAddr = fixture.server.url["ws://".len()..].parse().unwrap();
    let content = noise(5 << 20);
    fs::write(fixture.local_path("large"), &content).unwrap();
    // With these seeds, every connection transfers something.
    for (seed, source, target) in [
        (124 << 40, "large".to_owned(), fixture.remote("")),
        (456 << 40, fixture.remote("large"), "back".to_owned()),
    ] {
        let proxy = CuttingProxy::start(address, 6, seed).await;
        let url = format!("ws://{}", proxy.address());
        let ended = fixture.user.run(["cp", "-E", &url, &source, &target]).await;
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert_eq!(proxy.cuts(), 6);
        assert!(ended.stderr.contains("reconnecting…"), "{ended:?}");
    }
    assert!(fs::read(fixture.remote_path("large")).unwrap() == content);
    assert!(fs::read(fixture.local_path("back")).unwrap() == content);
}

/// Starts a copy, waits until it is in progress, sends a signal, and returns the result.
async fn stop(
    fixture: &CopyFixture,
    line: &[&str],
    signal: Signal,
    is_begun: impl Fn() -> bool,
) -> CommandResult {
    let mut command = fixture.user.command(fixture.line("cp", line));
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    let started = async {
        // No event reports a new file below a directory that does not exist yet.
        while !is_begun() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    within_timeout(started).await;
    kill_process(pid, signal).unwrap();
    within_timeout(child.wait_with_output())
        .await
        .unwrap()
        .into()
}

/// Lists the files below a directory.
fn files(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path.to_string_lossy().into_owned()),
        }
    }
    found
}

#[tokio::test]
async fn termination_signals_leave_no_incomplete_files() {
    let fixture = CopyFixture::new().await;
    let content = noise(300 << 10);
    for number in 0..600 {
        write(&fixture.local_path(&format!("tree/{number}")), &content);
    }
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let target = format!("{status}");
        let directory = fixture.remote_path(&target);
        fs::create_dir(&directory).unwrap();
        let remote = fixture.remote(&format!("{target}/tree"));
        let line = ["-r", "tree", &remote];
        let ended = stop(&fixture, &line, signal, || files(&directory).len() > 40).await;
        ended.failed(status, &["again"]);
        let remaining = files(&directory);
        let parts = remaining.iter().filter(|path| path.ends_with(".part"));
        assert_eq!(parts.collect::<Vec<_>>(), [""; 0], "{signal:?}");
        // Copied files are not copied again.
        let line = ["-r", "--json", "tree", &remote];
        let output = fixture.json("cp", &line).await;
        assert!(output["resumedBytes"].as_u64().unwrap() > 0, "{output}");
        assert_eq!(output["files"], 600, "{output}");
        assert_eq!(names(&directory), ["tree"]);
        assert_eq!(files(&directory.join("tree")).len(), 600);
    }
}

#[tokio::test]
async fn cancelled_copy_within_an_environment_leaves_nothing() {
    let fixture = CopyFixture::new().await;
    let file = fs::File::create(fixture.remote_path("large")).unwrap();
    file.set_len(2 << 30).unwrap();
    let (source, target) = (fixture.remote("large"), fixture.remote("copy"));
    let is_begun = || names(fixture.remote_dir.path()).len() > 1;
    let ended = stop(&fixture, &[&source, &target], Signal::INT, is_begun).await;
    ended.failed(130, &["again"]);
    assert!(!ended.stderr.contains("go on"), "{ended:?}");
    assert_eq!(names(fixture.remote_dir.path()), ["large"]);
}
