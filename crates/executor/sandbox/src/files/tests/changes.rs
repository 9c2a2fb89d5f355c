use exec_wire::fs::{Copy, CreateDirectory, Remove, Rename};

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
