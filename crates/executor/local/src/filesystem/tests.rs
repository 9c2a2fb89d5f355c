use std::{collections::BTreeMap, fs, path::Path};

use exec_core::log::Retention;
use exec_env::filesystem::WatchDepth;
use futures_util::StreamExt;
use tempfile::TempDir;

use super::*;
use crate::{
    backend::LocalConfig,
    host::{Host, HostFacts},
};

fn backend() -> LocalBackend {
    let env = BTreeMap::new();
    let host = Host::new(&HostFacts {
        env: &env,
        passwd: "",
        uid: 0,
        cwd: Path::new("/"),
        exists: &|path: &Path| path.exists(),
    });
    LocalBackend::new(LocalConfig {
        env,
        host,
        version: String::new(),
        retention: Retention::default(),
        sandbox: exec_sandbox::Settings::default(),
    })
}

/// A directory `inside` that may be written, one `outside`, and files that keep policies.
struct Scene {
    dir: TempDir,
    files: LocalFileSystem,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["inside", "outside"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("file"), name).unwrap();
        }
        let files = LocalFileSystem::for_a_server().with_policies_of(&backend());
        Self { dir, files }
    }

    fn at(&self, path: &str) -> PathUri {
        let path = fs::canonicalize(self.dir.path()).unwrap().join(path);
        PathUri::from_native(&path).unwrap()
    }

    /// Everything may be read, and what is inside written.
    fn wide(&self) -> Option<Box<Sandbox>> {
        self.policy(r#"{"path":{"type":"special","value":{"kind":"root"}},"access":"read"},"#)
    }

    /// Nothing but what is inside may be used.
    fn narrow(&self) -> Option<Box<Sandbox>> {
        self.policy("")
    }

    fn policy(&self, more: &str) -> Option<Box<Sandbox>> {
        let inside = self.at("inside");
        let text = format!(
            r#"{{"permissions":{{"type":"managed","file_system":{{"type":"restricted","entries":[{more}
            {{"path":{{"type":"path","path":"{inside}"}},"access":"write"}}]}},"network":"restricted"}},
            "windowsSandboxLevel":"disabled"}}"#
        );
        Some(serde_json::from_str(&text).unwrap())
    }

    async fn read(&self, path: &str, sandbox: Option<Box<Sandbox>>) -> Result<Bytes, FileError> {
        let read = ReadFile {
            path: self.at(path),
            follow_symlinks: None,
            sandbox,
        };
        self.files.read_file(read).await
    }

    fn write(&self, path: &str, data: &'static str) -> FileFuture<()> {
        let write = WriteFile {
            path: self.at(path),
            data_base64: None,
            follow_symlinks: None,
            create_parents: false,
            atomic: false,
            mode: None,
            sandbox: self.wide(),
        };
        self.files
            .write_file(write, Bytes::from_static(data.as_bytes()))
    }
}

#[tokio::test]
async fn a_policy_decides_what_is_read() {
    let scene = Scene::new();
    assert_eq!(
        scene.read("outside/file", scene.wide()).await.unwrap(),
        "outside"
    );
    assert_eq!(
        scene.read("inside/file", scene.narrow()).await.unwrap(),
        "inside"
    );
    let hidden = scene.read("outside/file", scene.narrow()).await;
    assert!(matches!(hidden, Err(FileError::NotFound(_))), "{hidden:?}");
    let large = vec![7; 1_000_000];
    fs::write(scene.dir.path().join("inside/large"), &large).unwrap();
    assert!(scene.read("inside/large", scene.narrow()).await.unwrap() == large);
}

#[tokio::test]
async fn a_policy_decides_what_is_changed() {
    let scene = Scene::new();
    scene.write("inside/new", "new").await.unwrap();
    assert_eq!(
        fs::read(scene.dir.path().join("inside/new")).unwrap(),
        b"new"
    );
    let refused = scene.write("outside/new", "new").await;
    assert!(matches!(refused, Err(FileError::Host(_))), "{refused:?}");
    assert!(!scene.dir.path().join("outside/new").exists());
}

#[tokio::test]
async fn protected_names_cannot_be_made() {
    let scene = Scene::new();
    let create = CreateDirectory {
        path: scene.at("inside/.git"),
        recursive: None,
        follow_symlinks: None,
        sandbox: scene.wide(),
    };
    assert!(scene.files.create_directory(create).await.is_err());
    assert!(scene.write("inside/.git", "gitdir: x").await.is_err());
    assert!(!scene.dir.path().join("inside/.git").exists());
}

#[tokio::test]
async fn changes_keep_their_order_under_a_policy_and_without() {
    let scene = Scene::new();
    let contents = ["a", "b", "c", "d", "e", "f"];
    let changes: Vec<_> = contents
        .iter()
        .enumerate()
        .map(|(number, content)| {
            let write = WriteFile {
                path: scene.at("inside/file"),
                data_base64: None,
                follow_symlinks: None,
                create_parents: false,
                atomic: false,
                mode: None,
                sandbox: if number % 2 == 0 { scene.wide() } else { None },
            };
            let data = Bytes::from_static(content.as_bytes());
            scene.files.write_file(write, data)
        })
        .collect();
    for change in changes.into_iter().rev() {
        change.await.unwrap();
    }
    assert_eq!(
        fs::read(scene.dir.path().join("inside/file")).unwrap(),
        b"f"
    );
}

#[tokio::test]
async fn a_file_that_was_opened_under_a_policy_stays_open() {
    let scene = Scene::new();
    let open = |path, mode, sandbox| {
        scene.files.open(Open {
            path: scene.at(path),
            mode,
            sandbox,
        })
    };
    let file = open("inside/file", OpenMode::Read, scene.narrow())
        .await
        .unwrap();
    let block = file.read_block(2, 100).await.unwrap();
    assert_eq!((&block.data[..], block.eof), (&b"side"[..], true));
    let file = open("inside/new", OpenMode::Replace, scene.narrow())
        .await
        .unwrap();
    file.write_block(0, Bytes::from_static(b"written"))
        .await
        .unwrap();
    assert_eq!(
        fs::read(scene.dir.path().join("inside/new")).unwrap(),
        b"written"
    );
    let hidden = open("outside/file", OpenMode::Read, scene.narrow()).await;
    assert!(matches!(hidden, Err(FileError::NotFound(_))), "{hidden:?}");
}

#[tokio::test]
async fn what_is_watched_under_a_policy_is_told() {
    let scene = Scene::new();
    let watch = WatchPath {
        path: scene.at("inside"),
        depth: WatchDepth::Tree,
        sandbox: scene.narrow(),
    };
    let mut watcher = scene.files.watch(watch).await.unwrap();
    scene.write("inside/new", "new").await.unwrap();
    let told = watcher.changes.next().await.unwrap();
    assert_eq!(told.changes[0].path, scene.at("inside/new"));
}

#[tokio::test]
async fn a_policy_that_nobody_keeps_is_refused() {
    let scene = Scene {
        files: LocalFileSystem::default(),
        ..Scene::new()
    };
    assert!(scene.read("inside/file", scene.wide()).await.is_ok());
    for refused in [
        scene.read("inside/file", scene.narrow()).await.map(drop),
        scene.write("inside/file", "new").await,
    ] {
        assert!(matches!(refused, Err(FileError::Refused(_))), "{refused:?}");
    }
    assert_eq!(
        fs::read(scene.dir.path().join("inside/file")).unwrap(),
        b"inside"
    );
}
