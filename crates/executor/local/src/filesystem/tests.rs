use std::{collections::BTreeMap, fs, path::Path};

use exec_core::output_log::RetentionLimits;
use exec_env::filesystem::WatchDepth;
use futures_util::StreamExt;
use tempfile::TempDir;

use super::*;
use crate::{
    backend::LocalConfig,
    host::{HostDescription, HostFacts},
};

fn backend() -> LocalBackend {
    let env = BTreeMap::new();
    let host = HostDescription::new(&HostFacts {
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
        retention: RetentionLimits::default(),
        sandbox: exec_sandbox::SandboxSettings::default(),
    })
}

/// A writable directory `inside`, a directory `outside`, and a file system that enforces policies.
struct TestFiles {
    dir: TempDir,
    files: LocalFileSystem,
}

impl TestFiles {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["inside", "outside"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("file"), name).unwrap();
        }
        let files = LocalFileSystem::for_server().with_policies(&backend());
        Self { dir, files }
    }

    fn at(&self, path: &str) -> PathUri {
        let path = fs::canonicalize(self.dir.path()).unwrap().join(path);
        PathUri::from_native(&path).unwrap()
    }

    /// Policy: everything is readable, `inside` is writable.
    fn read_all(&self) -> Option<Box<SandboxPolicy>> {
        self.policy(r#"{"path":{"type":"special","value":{"kind":"root"}},"access":"read"},"#)
    }

    /// Policy: only `inside` is accessible.
    fn inside_only(&self) -> Option<Box<SandboxPolicy>> {
        self.policy("")
    }

    fn policy(&self, more: &str) -> Option<Box<SandboxPolicy>> {
        let inside = self.at("inside");
        let text = format!(
            r#"{{"permissions":{{"type":"managed","file_system":{{"type":"restricted","entries":[{more}
            {{"path":{{"type":"path","path":"{inside}"}},"access":"write"}}]}},"network":"restricted"}},
            "windowsSandboxLevel":"disabled"}}"#
        );
        Some(serde_json::from_str(&text).unwrap())
    }

    async fn read(
        &self,
        path: &str,
        sandbox: Option<Box<SandboxPolicy>>,
    ) -> Result<Bytes, FileError> {
        let read = ReadFile {
            path: self.at(path),
            follow_symlinks: None,
            sandbox,
        };
        self.files.read_file(read).await
    }

    fn write(&self, path: &str, data: impl Into<Bytes>) -> FileFuture<()> {
        let write = WriteFile {
            path: self.at(path),
            data_base64: None,
            follow_symlinks: None,
            create_parents: false,
            atomic: false,
            mode: None,
            sandbox: self.read_all(),
        };
        self.files.write_file(write, data.into())
    }
}

#[tokio::test]
async fn policy_decides_which_files_are_readable() {
    let test = TestFiles::new();
    assert_eq!(
        test.read("outside/file", test.read_all()).await.unwrap(),
        "outside"
    );
    assert_eq!(
        test.read("inside/file", test.inside_only()).await.unwrap(),
        "inside"
    );
    let hidden = test.read("outside/file", test.inside_only()).await;
    assert!(matches!(hidden, Err(FileError::NotFound(_))), "{hidden:?}");
    let large = vec![7; 1_000_000];
    fs::write(test.dir.path().join("inside/large"), &large).unwrap();
    assert!(test.read("inside/large", test.inside_only()).await.unwrap() == large);
}

#[tokio::test]
async fn policy_decides_which_files_are_writable() {
    let test = TestFiles::new();
    test.write("inside/new", "new").await.unwrap();
    assert_eq!(
        fs::read(test.dir.path().join("inside/new")).unwrap(),
        b"new"
    );
    let rejected = test.write("outside/new", "new").await;
    assert!(matches!(rejected, Err(FileError::Host(_))), "{rejected:?}");
    assert!(!test.dir.path().join("outside/new").exists());
}

#[tokio::test]
async fn protected_names_cannot_be_created() {
    let test = TestFiles::new();
    let create = CreateDirectory {
        path: test.at("inside/.git"),
        recursive: None,
        follow_symlinks: None,
        sandbox: test.read_all(),
    };
    assert!(test.files.create_directory(create).await.is_err());
    assert!(test.write("inside/.git", "gitdir: x").await.is_err());
    assert!(!test.dir.path().join("inside/.git").exists());
}

#[tokio::test]
async fn sandboxed_and_direct_changes_keep_their_order() {
    let test = TestFiles::new();
    let contents = ["a", "b", "c", "d", "e", "f"];
    let changes: Vec<_> = contents
        .iter()
        .enumerate()
        .map(|(number, content)| {
            let write = WriteFile {
                path: test.at("inside/file"),
                data_base64: None,
                follow_symlinks: None,
                create_parents: false,
                atomic: false,
                mode: None,
                sandbox: if number % 2 == 0 {
                    test.read_all()
                } else {
                    None
                },
            };
            let data = Bytes::from_static(content.as_bytes());
            test.files.write_file(write, data)
        })
        .collect();
    for change in changes.into_iter().rev() {
        change.await.unwrap();
    }
    assert_eq!(fs::read(test.dir.path().join("inside/file")).unwrap(), b"f");
}

#[tokio::test]
async fn abandoned_change_under_a_policy_runs_to_completion() {
    const LENGTH: u64 = 64 << 20;
    let test = TestFiles::new();
    let path = test.dir.path().join("inside/new");
    let length = || fs::metadata(&path).map_or(0, |file| file.len());
    let wait_until = async |least: u64| {
        let wait = async {
            while length() < least {
                tokio::task::yield_now().await;
            }
        };
        let limit = std::time::Duration::from_secs(20);
        tokio::time::timeout(limit, wait).await.unwrap();
    };
    let writing = test.write("inside/new", vec![7; usize::try_from(LENGTH).unwrap()]);
    let writing = tokio::spawn(writing);
    wait_until(1).await;
    writing.abort();
    wait_until(LENGTH).await;
}

#[tokio::test]
async fn file_opened_under_a_policy_stays_usable() {
    let test = TestFiles::new();
    let open = |path, mode, sandbox| {
        test.files.open(OpenFileRequest {
            path: test.at(path),
            mode,
            sandbox,
        })
    };
    let file = open("inside/file", OpenMode::Read, test.inside_only())
        .await
        .unwrap();
    let block = file.read_block(2, 100).await.unwrap();
    assert_eq!((&block.data[..], block.eof), (&b"side"[..], true));
    let file = open("inside/new", OpenMode::Replace, test.inside_only())
        .await
        .unwrap();
    file.write_block(0, Bytes::from_static(b"written"))
        .await
        .unwrap();
    assert_eq!(
        fs::read(test.dir.path().join("inside/new")).unwrap(),
        b"written"
    );
    let hidden = open("outside/file", OpenMode::Read, test.inside_only()).await;
    assert!(matches!(hidden, Err(FileError::NotFound(_))), "{hidden:?}");
}

#[tokio::test]
async fn watch_under_a_policy_reports_changes() {
    let test = TestFiles::new();
    let watch = WatchPathRequest {
        path: test.at("inside"),
        depth: WatchDepth::Tree,
        sandbox: test.inside_only(),
    };
    let mut watcher = test.files.watch(watch).await.unwrap();
    test.write("inside/new", "new").await.unwrap();
    let batch = watcher.changes.next().await.unwrap();
    assert_eq!(batch.changes[0].path, test.at("inside/new"));
}

#[tokio::test]
async fn restrictive_policy_without_enforcement_is_rejected() {
    let test = TestFiles {
        files: LocalFileSystem::default(),
        ..TestFiles::new()
    };
    assert!(test.read("inside/file", test.read_all()).await.is_ok());
    for rejected in [
        test.read("inside/file", test.inside_only()).await.map(drop),
        test.write("inside/file", "new").await,
    ] {
        assert!(
            matches!(rejected, Err(FileError::Refused(_))),
            "{rejected:?}"
        );
    }
    assert_eq!(
        fs::read(test.dir.path().join("inside/file")).unwrap(),
        b"inside"
    );
}
