//! Copies that are ended, and what they leave behind.

use std::{fs, path::Path, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use super::{Scene, names, noise, write};
use crate::cast::{Ended, soon};

/// Starts a copy, waits until it is under way, sends a signal, and returns how it ended.
async fn stop(scene: &Scene, line: &[&str], signal: Signal, is_begun: impl Fn() -> bool) -> Ended {
    let mut command = scene.person.command(scene.line("cp", line));
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    let begun = async {
        // Nothing tells that a file has appeared below a directory that is not there yet.
        while !is_begun() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    soon(begun).await;
    kill_process(pid, signal).unwrap();
    soon(child.wait_with_output()).await.unwrap().into()
}

/// Paths of files below a directory.
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
async fn every_signal_that_ends_a_copy_leaves_no_half_files() {
    let scene = Scene::new().await;
    let content = noise(300 << 10);
    for number in 0..600 {
        write(&scene.here(&format!("tree/{number}")), &content);
    }
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let target = format!("{status}");
        let directory = scene.there(&target);
        fs::create_dir(&directory).unwrap();
        let remote = scene.remote(&format!("{target}/tree"));
        let line = ["-r", "tree", &remote];
        let ended = stop(&scene, &line, signal, || files(&directory).len() > 40).await;
        ended.failed(status, &["again"]);
        let left = files(&directory);
        let parts = left.iter().filter(|path| path.ends_with(".part"));
        assert_eq!(parts.collect::<Vec<_>>(), [""; 0], "{signal:?}");
        // What was copied is not copied again.
        let line = ["-r", "--json", "tree", &remote];
        let told = scene.json("cp", &line).await;
        assert!(told["resumedBytes"].as_u64().unwrap() > 0, "{told}");
        assert_eq!(told["files"], 600, "{told}");
        assert_eq!(names(&directory), ["tree"]);
        assert_eq!(files(&directory.join("tree")).len(), 600);
    }
}

#[tokio::test]
async fn a_copy_within_an_environment_leaves_nothing() {
    let scene = Scene::new().await;
    let file = fs::File::create(scene.there("large")).unwrap();
    file.set_len(2 << 30).unwrap();
    let (source, target) = (scene.remote("large"), scene.remote("copy"));
    let is_begun = || names(scene.there.path()).len() > 1;
    let ended = stop(&scene, &[&source, &target], Signal::INT, is_begun).await;
    ended.failed(130, &["again"]);
    assert!(!ended.stderr.contains("go on"), "{ended:?}");
    assert_eq!(names(scene.there.path()), ["large"]);
}
