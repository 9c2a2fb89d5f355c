use std::{
    os::unix::fs::symlink,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use exec_wire::fs::{Copy, CreateDirectory, Remove, Rename};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::*;

async fn change(scene: &Scene, request: Request) -> Result<(), FileError> {
    scene.files.result(scene.wide(), request).await
}

fn rename(from: &Path, to: &Path) -> Request {
    Request::Rename(Rename {
        source_path: uri(from),
        destination_path: uri(to),
        overwrite: false,
        sandbox: None,
    })
}

fn create(path: &Path) -> Request {
    Request::CreateDirectory(CreateDirectory {
        path: uri(path),
        recursive: None,
        follow_symlinks: None,
        sandbox: None,
    })
}

fn remove(path: &Path) -> Request {
    Request::Remove(Remove {
        path: uri(path),
        recursive: None,
        force: None,
        follow_symlinks: None,
        sandbox: None,
    })
}

#[tokio::test]
async fn what_may_be_written_is_changed() {
    let scene = Scene::new();
    let at = |name: &str| scene.inside.join(name);
    let large = vec![7; 5_000_000];
    scene
        .write(&scene.wide(), &at("new"), &large)
        .await
        .unwrap();
    assert!(fs::read(at("new")).unwrap() == large);
    change(&scene, rename(&at("new"), &at("renamed")))
        .await
        .unwrap();
    assert!(!at("new").exists() && at("renamed").exists());
    change(&scene, create(&at("a/b"))).await.unwrap();
    assert!(at("a/b").is_dir());
    let copy = Request::Copy(Copy {
        source_path: uri(&scene.outside),
        destination_path: uri(&at("a/copy")),
        recursive: true,
        sandbox: None,
    });
    change(&scene, copy).await.unwrap();
    assert_eq!(fs::read(at("a/copy/file")).unwrap(), b"outside");
    change(&scene, remove(&at("a"))).await.unwrap();
    assert!(!at("a").exists());
}

#[tokio::test]
async fn what_may_only_be_read_is_not_changed() {
    let scene = Scene::new();
    let at = |name: &str| scene.outside.join(name);
    let attempts = [
        scene.write(&scene.wide(), &at("file"), b"x").await,
        scene.write(&scene.wide(), &at("new"), b"x").await,
        change(&scene, rename(&at("file"), &at("renamed"))).await,
        change(&scene, create(&at("a"))).await,
        change(&scene, remove(&at("file"))).await,
        scene.open(&at("file"), OpenMode::Replace).await.map(drop),
    ];
    for attempt in attempts {
        let error = attempt.unwrap_err();
        let is_read_only = matches!(&error, FileError::Host(text) if text.contains("Read-only"));
        assert!(is_read_only, "{error:?}");
    }
    assert_eq!(fs::read(at("file")).unwrap(), b"outside");
    assert_eq!(fs::read_dir(&scene.outside).unwrap().count(), 1);
}

#[tokio::test]
async fn a_link_leads_no_further_than_the_policy() {
    let scene = Scene::new();
    let link = scene.inside.join("link");
    std::os::unix::fs::symlink(scene.outside.join("file"), &link).unwrap();
    assert!(scene.write(&scene.wide(), &link, b"x").await.is_err());
    let error = scene.read(&scene.narrow(), &link).await.unwrap_err();
    assert!(matches!(error, FileError::NotFound(_)), "{error:?}");
    assert_eq!(fs::read(scene.outside.join("file")).unwrap(), b"outside");
}

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
