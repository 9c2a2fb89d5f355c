use std::{
    os::unix::fs::symlink,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::*;

/// Runs something while a directory inside is a link to the outside half of the time.
async fn while_swapped<T>(scene: &Scene, run: impl AsyncFnOnce(PathBuf) -> T) -> T {
    let [directory, link] = ["directory", "link"].map(|name| scene.inside.join(name));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), "inside").unwrap();
    symlink(&scene.outside, &link).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapping = {
        let (stop, directory) = (Arc::clone(&stop), directory.clone());
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, &directory, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        })
    };
    let result = run(directory.join("file")).await;
    stop.store(true, Ordering::Relaxed);
    swapping.join().unwrap();
    result
}

#[tokio::test]
async fn a_directory_that_becomes_a_link_never_leads_a_reader_out() {
    let scene = Scene::new();
    let plan = scene.narrow();
    let read = async |path: PathBuf| {
        let (mut read, mut refused) = (0, 0);
        for _ in 0..3000 {
            match scene.read(&plan, &path).await {
                Ok(content) => {
                    assert_eq!(content, b"inside");
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
        (read, refused)
    };
    let (read, refused) = while_swapped(&scene, read).await;
    assert!(read > 0 && refused > 0, "{read} {refused}");
}

#[tokio::test]
async fn a_directory_that_becomes_a_link_never_leads_a_writer_out() {
    let scene = Scene::new();
    let plan = scene.wide();
    let write = async |path: PathBuf| {
        let mut written = 0;
        for _ in 0..2000 {
            if scene.write(&plan, &path, b"changed").await.is_ok() {
                written += 1;
            }
            let content = fs::read(scene.outside.join("file")).unwrap();
            assert_eq!(content, b"outside");
        }
        written
    };
    let written = while_swapped(&scene, write).await;
    assert!(written > 0);
    assert_eq!(fs::read_dir(&scene.outside).unwrap().count(), 1);
}
