//! Temporary directory of a case, and FIFOs that detect and control the lifetime of processes.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use tokio::net::unix::pipe;

use crate::bounded_wait::within;

/// Temporary directory that is removed on drop.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    /// Canonical path.
    root: PathBuf,
    _dir: TempDir,
}

impl ScratchDir {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("failed to create a temporary directory");
        let root = dir
            .path()
            .canonicalize()
            .expect("failed to canonicalize the temporary directory");
        Self { root, _dir: dir }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    /// Creates a file and its parents.
    pub(crate) fn file(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        let parent = path.parent().expect("path has no parent");
        fs::create_dir_all(parent).expect("failed to create the parents");
        fs::write(&path, content).expect("failed to write the file");
        path
    }

    /// Creates a sparse file of `bytes` bytes.
    pub(crate) fn sparse(&self, name: &str, length: u64) -> PathBuf {
        let path = self.file(name, "");
        let file = fs::OpenOptions::new().write(true).open(&path);
        let grown = file.and_then(|file| file.set_len(length));
        grown.expect("failed to set the file size");
        path
    }

    /// Creates many files as hard links of one file, which is cheaper.
    pub(crate) fn hard_linked_files(&self, names: impl IntoIterator<Item = String>) {
        let mut names = names.into_iter();
        let first = names.next().map(|name| self.file(name, ""));
        for name in names {
            let first = first.as_ref().expect("no first file");
            fs::hard_link(first, self.path(name)).expect("failed to create a hard link");
        }
    }

    /// Creates a directory and its parents.
    pub(crate) fn directory(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("failed to create the directory");
        path
    }

    /// Creates a symlink to `target`, which need not exist.
    pub(crate) fn link(&self, name: impl AsRef<Path>, target: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        symlink(target, &path).expect("failed to create the symlink");
        path
    }

    /// Creates a FIFO that processes hold open for writing: it reaches end of file when the last of
    /// them exits.
    pub(crate) fn lifeline(&self) -> LifelinePipe {
        let path = self.fifo("lifeline");
        let end = pipe::OpenOptions::new()
            .open_receiver(&path)
            .expect("failed to open the FIFO for reading");
        LifelinePipe { path, end }
    }

    /// Creates a FIFO from which processes read a line before they continue.
    pub(crate) fn gate(&self) -> GatePipe {
        let path = self.fifo("gate");
        // Open in both directions, so that neither side blocks in `open`.
        let end = pipe::OpenOptions::new().read_write(true).open_sender(&path);
        GatePipe {
            path,
            end: end.expect("failed to open the FIFO for writing"),
        }
    }

    pub(crate) fn fifo(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .expect("failed to create the FIFO");
        path
    }
}

/// Returns the permission bits of a path.
pub(crate) fn mode(path: &Path) -> u32 {
    let metadata = fs::metadata(path).expect("failed to read metadata");
    metadata.permissions().mode() & 0o7777
}

/// Sets the permission bits of a path.
pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("failed to set permissions");
}

/// Returns the sorted names in a directory.
pub(crate) fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("failed to read the directory");
    let name = |entry: io::Result<fs::DirEntry>| {
        let name = entry.expect("failed to read a directory entry").file_name();
        name.to_string_lossy().into_owned()
    };
    let mut names: Vec<_> = entries.map(name).collect();
    names.sort();
    names
}

/// FIFO that detects the end of a process tree.
#[derive(Debug)]
pub(crate) struct LifelinePipe {
    path: PathBuf,
    end: pipe::Receiver,
}

impl LifelinePipe {
    pub(crate) fn path(&self) -> &str {
        text(&self.path)
    }

    /// Waits until a process has written a line: from now on, end of file means that all are gone.
    pub(crate) async fn held(&self) {
        let line = within("process writes to the lifeline", read(&self.end)).await;
        assert_eq!(line, b"held\n");
    }

    /// Waits until the last process is gone.
    pub(crate) async fn gone(&self) {
        let rest = within("process tree is gone", read(&self.end)).await;
        assert_eq!(rest, b"", "nothing but the end comes");
    }
}

/// FIFO that lets processes continue.
#[derive(Debug)]
pub(crate) struct GatePipe {
    path: PathBuf,
    end: pipe::Sender,
}

impl GatePipe {
    pub(crate) fn path(&self) -> &str {
        text(&self.path)
    }

    /// Lets one reader continue.
    pub(crate) fn open(&self) {
        assert_eq!(
            self.end.try_write(b"\n").ok(),
            Some(1),
            "failed to write to the gate"
        );
    }
}

async fn read(end: &pipe::Receiver) -> Vec<u8> {
    let mut line = vec![0; 64];
    loop {
        end.readable().await.expect("failed to poll the FIFO");
        match end.try_read(&mut line) {
            Ok(length) => {
                line.truncate(length);
                return line;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("a pipe can be read: {error}"),
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary path is not UTF-8")
}
