use std::{
    os::unix::fs::symlink,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use exec_wire::fs::{CopyPath, CreateDirectory, RemovePath, RenamePath};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::*;

async fn change(test_fs: &TestFs, request: WorkerRequest) -> Result<(), FileError> {
    test_fs.files.result(test_fs.wide(), request).await
}

fn rename(from: &Path, to: &Path) -> WorkerRequest {
    WorkerRequest::Rename(RenamePath {
        source_path: uri(from),
        destination_path: uri(to),
        overwrite: false,
        sandbox: None,
    })
}

fn create(path: &Path) -> WorkerRequest {
    WorkerRequest::CreateDirectory(CreateDirectory {
        path: uri(path),
        recursive: None,
        follow_symlinks: None,
        sandbox: None,
    })
}

fn remove(path: &Path) -> WorkerRequest {
    WorkerRequest::Remove(RemovePath {
        path: uri(path),
        recursive: None,
        force: None,
        follow_symlinks: None,
        sandbox: None,
    })
}

#[tokio::test]
async fn writable_files_can_be_changed() {
    let test_fs = TestFs::new();
    let at = |name: &str| test_fs.inside.join(name);
    let large = vec![7; 5_000_000];
    test_fs
        .write(&test_fs.wide(), &at("new"), &large)
        .await
        .unwrap();
    assert!(fs::read(at("new")).unwrap() == large);
    change(&test_fs, rename(&at("new"), &at("renamed")))
        .await
        .unwrap();
    assert!(!at("new").exists() && at("renamed").exists());
    change(&test_fs, create(&at("a/b"))).await.unwrap();
    assert!(at("a/b").is_dir());
    let copy = WorkerRequest::Copy(CopyPath {
        source_path: uri(&test_fs.outside),
        destination_path: uri(&at("a/copy")),
        recursive: true,
        sandbox: None,
    });
    change(&test_fs, copy).await.unwrap();
    assert_eq!(fs::read(at("a/copy/file")).unwrap(), b"outside");
    change(&test_fs, remove(&at("a"))).await.unwrap();
    assert!(!at("a").exists());
}

#[tokio::test]
async fn read_only_files_cannot_be_changed() {
    let test_fs = TestFs::new();
    let at = |name: &str| test_fs.outside.join(name);
    let attempts = [
        test_fs.write(&test_fs.wide(), &at("file"), b"x").await,
        test_fs.write(&test_fs.wide(), &at("new"), b"x").await,
        change(&test_fs, rename(&at("file"), &at("renamed"))).await,
        change(&test_fs, create(&at("a"))).await,
        change(&test_fs, remove(&at("file"))).await,
        test_fs.open(&at("file"), OpenMode::Replace).await.map(drop),
    ];
    for attempt in attempts {
        let error = attempt.unwrap_err();
        let is_read_only = matches!(&error, FileError::Host(text) if text.contains("Read-only"));
        assert!(is_read_only, "{error:?}");
    }
    assert_eq!(fs::read(at("file")).unwrap(), b"outside");
    assert_eq!(fs::read_dir(&test_fs.outside).unwrap().count(), 1);
}

#[tokio::test]
async fn link_out_of_the_sandbox_is_not_followed() {
    let test_fs = TestFs::new();
    let link = test_fs.inside.join("link");
    std::os::unix::fs::symlink(test_fs.outside.join("file"), &link).unwrap();
    assert!(test_fs.write(&test_fs.wide(), &link, b"x").await.is_err());
    let error = test_fs.read(&test_fs.narrow(), &link).await.unwrap_err();
    assert!(matches!(error, FileError::NotFound(_)), "{error:?}");
    assert_eq!(fs::read(test_fs.outside.join("file")).unwrap(), b"outside");
}

/// Runs `run` while a directory inside is swapped with a link to the outside.
async fn while_swapped<T>(test_fs: &TestFs, run: impl AsyncFnOnce(PathBuf) -> T) -> T {
    let [directory, link] = ["directory", "link"].map(|name| test_fs.inside.join(name));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), "inside").unwrap();
    symlink(&test_fs.outside, &link).unwrap();
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
async fn directory_swapped_for_a_link_never_lets_a_read_escape() {
    let test_fs = TestFs::new();
    let plan = test_fs.narrow();
    let read = async |path: PathBuf| {
        let (mut read, mut refused) = (0, 0);
        for _ in 0..3000 {
            match test_fs.read(&plan, &path).await {
                Ok(content) => {
                    assert_eq!(content, b"inside");
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
        (read, refused)
    };
    let (read, refused) = while_swapped(&test_fs, read).await;
    assert!(read > 0 && refused > 0, "{read} {refused}");
}

#[tokio::test]
async fn directory_swapped_for_a_link_never_lets_a_write_escape() {
    let test_fs = TestFs::new();
    let plan = test_fs.wide();
    let write = async |path: PathBuf| {
        let mut written = 0;
        for _ in 0..2000 {
            if test_fs.write(&plan, &path, b"changed").await.is_ok() {
                written += 1;
            }
            let content = fs::read(test_fs.outside.join("file")).unwrap();
            assert_eq!(content, b"outside");
        }
        written
    };
    let written = while_swapped(&test_fs, write).await;
    assert!(written > 0);
    assert_eq!(fs::read_dir(&test_fs.outside).unwrap().count(), 1);
}
