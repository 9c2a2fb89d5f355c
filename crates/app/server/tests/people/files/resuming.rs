//! Copies that are interrupted, and go on.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use exec_conformance::cutting::CuttingProxy;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::sleep;

use super::{Scene, names, noise, write};
use crate::cast::{Ended, soon};

const SIZE: usize = 256 << 20;
/// What is surely there when somebody presses Ctrl-C.
const BEGUN: u64 = 16 << 20;

/// Returns the one part of a file in a directory, or in the part of a tree there, if there is one.
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

/// Starts a copy, presses Ctrl-C when some of it is there, and returns how it ended.
async fn interrupt(scene: &Scene, line: &[&str], target: &Path) -> Ended {
    let mut command = scene.person.command(scene.line("cp", line));
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    let begun = async {
        // Nothing tells that a file has grown to a size.
        let length = || Some(fs::metadata(part(target)?).ok()?.len());
        while length().unwrap_or_default() < BEGUN {
            sleep(Duration::from_millis(1)).await;
        }
    };
    soon(begun).await;
    kill_process(pid, Signal::INT).unwrap();
    soon(child.wait_with_output()).await.unwrap().into()
}

fn summary(ended: Ended) -> Value {
    serde_json::from_str(&ended.well()).unwrap()
}

fn assert_resumed(told: &Value) {
    let (resumed, written) = (
        told["resumedBytes"].as_u64().unwrap(),
        told["writtenBytes"].as_u64().unwrap(),
    );
    assert!(resumed >= BEGUN, "{told}");
    assert_eq!(resumed + written, SIZE as u64, "{told}");
}

#[tokio::test]
async fn ctrl_c_leaves_no_half_file_and_the_next_run_goes_on() {
    let scene = Scene::new().await;
    let content = noise(SIZE);
    fs::write(scene.here("large"), &content).unwrap();
    let target = scene.remote("");
    let line = ["--json", "large", &target];
    let ended = interrupt(&scene, &line, scene.there.path()).await;
    ended.failed(130, &["interrupted", "again"]);
    let left = names(scene.there.path());
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].starts_with(".large.") && left[0].ends_with(".part"));
    assert_resumed(&summary(scene.run("cp", &line).await));
    assert_eq!(names(scene.there.path()), ["large"]);
    assert!(fs::read(scene.there("large")).unwrap() == content);
}

#[tokio::test]
async fn a_download_is_resumed_as_well() {
    let scene = Scene::new().await;
    let content = noise(SIZE);
    fs::write(scene.there("large"), &content).unwrap();
    fs::write(scene.here("large"), "the old one").unwrap();
    let source = scene.remote("large");
    let line = ["--json", &source, "."];
    let ended = interrupt(&scene, &line, &scene.person.work()).await;
    ended.failed(130, &["interrupted"]);
    assert_eq!(fs::read(scene.here("large")).unwrap(), b"the old one");
    assert_resumed(&summary(scene.run("cp", &line).await));
    assert_eq!(names(&scene.person.work()), ["large"]);
    assert!(fs::read(scene.here("large")).unwrap() == content);
}

#[tokio::test]
async fn a_part_is_not_continued_with_the_content_of_another_file() {
    let scene = Scene::new().await;
    let mut content = noise(SIZE);
    let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let put = |name: &str, content: &[u8]| {
        write(&scene.here(name), content);
        let file = fs::File::options().write(true).open(scene.here(name));
        file.unwrap().set_modified(time).unwrap();
    };
    put("one/large", &content);
    let target = scene.remote("large");
    let line = ["one/large", &target];
    let ended = interrupt(&scene, &line, scene.there.path()).await;
    ended.failed(130, &["interrupted"]);
    // Of the same size and time; the part has it neither at its beginning nor at its end.
    content[9 << 20] ^= 1;
    put("other/large", &content);
    scene.run("cp", &["other/large", &target]).await.well();
    assert!(fs::read(scene.there("large")).unwrap() == content);
    content[0] ^= 1;
    put("one/large", &content);
    scene.run("cp", &line).await.well();
    assert!(fs::read(scene.there("large")).unwrap() == content);
}

/// Copies a tree that is interrupted and changed, and copied by the same command.
async fn resume_tree(scene: &Scene, line: &[&str], source: &Path, target: &Path) {
    let (large, changed) = (noise(SIZE), noise(5));
    for name in ["a/kept", "a/changed", "a/gone", "a/gone-too/x"] {
        write(&source.join(name), "small");
    }
    fs::write(source.join("large"), &large).unwrap();
    let directory = target.parent().unwrap();
    let ended = interrupt(scene, line, directory).await;
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
    let told = summary(scene.run("cp", line).await);
    let (resumed, written) = (
        told["resumedBytes"].as_u64().unwrap(),
        told["writtenBytes"].as_u64().unwrap(),
    );
    assert!(resumed >= BEGUN, "{told}");
    assert_eq!(resumed + written, (SIZE + 10) as u64, "{told}");
    let name = target.file_name().unwrap();
    assert_eq!(names(directory), [name.to_str().unwrap()]);
    assert_eq!(names(target), ["a", "large"]);
    assert_eq!(names(&target.join("a")), ["changed", "kept"]);
    assert!(fs::read(target.join("large")).unwrap() == large);
    assert!(fs::read(target.join("a/changed")).unwrap() == changed);
}

#[tokio::test]
async fn an_interrupted_tree_is_finished_in_its_place_by_the_same_command() {
    let scene = Scene::new().await;
    fs::create_dir(scene.there("up")).unwrap();
    let target = scene.remote("up/tree");
    let line = ["-r", "--json", "tree", &target];
    let (here, there) = (scene.here("tree"), scene.there("up/tree"));
    resume_tree(&scene, &line, &here, &there).await;
    fs::create_dir(scene.here("down")).unwrap();
    let source = scene.remote("tree");
    let line = ["-r", "--json", &source, "down"];
    let (here, there) = (scene.here("down/tree"), scene.there("tree"));
    resume_tree(&scene, &line, &there, &here).await;
}

#[tokio::test]
async fn without_leave_a_tree_is_begun_anew() {
    let scene = Scene::new().await;
    write(&scene.here("tree/large"), noise(SIZE));
    let target = scene.remote("new");
    let line = ["-r", "--json", "--no-resume", "tree", &target];
    interrupt(&scene, &line, scene.there.path()).await;
    let told = summary(scene.run("cp", &line).await);
    assert_eq!(told["resumedBytes"], 0, "{told}");
    assert_eq!(names(scene.there.path()), ["new"]);
}

#[tokio::test]
async fn a_part_is_used_only_if_it_is_the_beginning_of_this_source() {
    let scene = Scene::new().await;
    let mut content = noise(SIZE);
    fs::write(scene.here("large"), &content).unwrap();
    let target = scene.remote("");
    let line = ["--json", "large", &target];
    interrupt(&scene, &line, scene.there.path()).await;
    // Somebody wrote into the part.
    let left = part(scene.there.path()).unwrap();
    let mut broken = fs::read(&left).unwrap();
    let last = broken.len() - 1;
    broken[last] ^= 1;
    fs::write(&left, broken).unwrap();
    let told = summary(scene.run("cp", &line).await);
    assert_eq!(told["resumedBytes"], 0, "{told}");
    assert!(fs::read(scene.there("large")).unwrap() == content);
    // The source is another one than the part is of.
    fs::remove_file(scene.there("large")).unwrap();
    interrupt(&scene, &line, scene.there.path()).await;
    content[0] ^= 1;
    fs::write(scene.here("large"), &content).unwrap();
    let told = summary(scene.run("cp", &line).await);
    assert_eq!(told["resumedBytes"], 0, "{told}");
    assert!(fs::read(scene.there("large")).unwrap() == content);
}

#[tokio::test]
async fn without_leave_nothing_is_resumed() {
    let scene = Scene::new().await;
    fs::write(scene.here("large"), noise(SIZE)).unwrap();
    let target = scene.remote("");
    let line = ["--json", "--no-resume", "large", &target];
    interrupt(&scene, &line, scene.there.path()).await;
    let told = summary(scene.run("cp", &line).await);
    assert_eq!(told["resumedBytes"], 0, "{told}");
    assert_eq!(told["writtenBytes"], SIZE, "{told}");
}

#[tokio::test]
async fn a_copy_goes_on_over_a_connection_that_is_cut_again_and_again() {
    let scene = Scene::new().await;
    let address: SocketAddr = scene.server.url["ws://".len()..].parse().unwrap();
    let content = noise(5 << 20);
    fs::write(scene.here("large"), &content).unwrap();
    // With these seeds, every connection lives to say something.
    for (seed, source, target) in [
        (124 << 40, "large".to_owned(), scene.remote("")),
        (456 << 40, scene.remote("large"), "back".to_owned()),
    ] {
        let proxy = CuttingProxy::start(address, 6, seed).await;
        let url = format!("ws://{}", proxy.address());
        let ended = scene.person.run(["cp", "-E", &url, &source, &target]).await;
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert_eq!(proxy.cuts(), 6);
        assert!(ended.stderr.contains("reconnecting…"), "{ended:?}");
    }
    assert!(fs::read(scene.there("large")).unwrap() == content);
    assert!(fs::read(scene.here("back")).unwrap() == content);
}
