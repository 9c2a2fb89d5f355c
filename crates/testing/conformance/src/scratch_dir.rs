//! A directory of a case's own, with files in it, and pipes that tell when processes live and let
//! them go on.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use tokio::net::unix::pipe;

use crate::bounded_wait::within;

/// A directory that is removed with its value.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Without links.
    root: PathBuf,
    _dir: TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let root = dir.path().canonicalize().expect("the directory exists");
        Self { root, _dir: dir }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    /// Makes a file, and the directories above it.
    pub(crate) fn file(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        let parent = path.parent().expect("it is below the root");
        fs::create_dir_all(parent).expect("directories can be made");
        fs::write(&path, content).expect("a file can be made");
        path
    }

    /// Makes a file that has so many bytes, and holds none.
    pub(crate) fn sparse(&self, name: &str, length: u64) -> PathBuf {
        let path = self.file(name, "");
        let file = fs::OpenOptions::new().write(true).open(&path);
        let grown = file.and_then(|file| file.set_len(length));
        grown.expect("a file can have holes");
        path
    }

    /// Makes many files. They are names of one, which costs less.
    pub(crate) fn crowd(&self, names: impl IntoIterator<Item = String>) {
        let mut names = names.into_iter();
        let first = names.next().map(|name| self.file(name, ""));
        for name in names {
            let first = first.as_ref().expect("there is a first one");
            fs::hard_link(first, self.path(name)).expect("a file can have names");
        }
    }

    /// Makes a directory, and those above it.
    pub(crate) fn directory(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("a directory can be made");
        path
    }

    /// Makes a link to `target`, which need not exist.
    pub(crate) fn link(&self, name: impl AsRef<Path>, target: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        symlink(target, &path).expect("a link can be made");
        path
    }

    /// Makes a pipe that processes hold open for writing: it ends when the last of them does.
    pub(crate) fn lifeline(&self) -> Lifeline {
        let path = self.fifo("lifeline");
        let end = pipe::OpenOptions::new()
            .open_receiver(&path)
            .expect("a fifo can be read");
        Lifeline { path, end }
    }

    /// Makes a pipe that processes read a line from when they are to go on.
    pub(crate) fn gate(&self) -> Gate {
        let path = self.fifo("gate");
        // Open in both directions, so that neither side waits for the other to open it.
        let end = pipe::OpenOptions::new().read_write(true).open_sender(&path);
        Gate {
            path,
            end: end.expect("a fifo can be written"),
        }
    }

    pub(crate) fn fifo(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .expect("a fifo can be made");
        path
    }
}

/// Returns the permission bits of what a path names.
pub(crate) fn mode(path: &Path) -> u32 {
    let metadata = fs::metadata(path).expect("the path names something");
    metadata.permissions().mode() & 0o7777
}

/// Sets the permission bits of what a path names.
pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions can be set");
}

/// Returns the names in a directory, in order.
pub(crate) fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("the directory can be read");
    let name = |entry: io::Result<fs::DirEntry>| {
        let name = entry.expect("an entry can be read").file_name();
        name.to_string_lossy().into_owned()
    };
    let mut names: Vec<_> = entries.map(name).collect();
    names.sort();
    names
}

/// Tells when nothing of a process tree lives any more.
#[derive(Debug)]
pub(crate) struct Lifeline {
    path: PathBuf,
    end: pipe::Receiver,
}

impl Lifeline {
    pub(crate) fn path(&self) -> &str {
        text(&self.path)
    }

    /// Waits until a holder has written a line: from here on, the end means that all are gone.
    pub(crate) async fn held(&self) {
        let line = within("a process holds the lifeline", read(&self.end)).await;
        assert_eq!(line, b"held\n");
    }

    /// Waits until the last holder is gone.
    pub(crate) async fn gone(&self) {
        let rest = within("the whole tree is gone", read(&self.end)).await;
        assert_eq!(rest, b"", "nothing but the end comes");
    }
}

/// Lets processes go on.
#[derive(Debug)]
pub(crate) struct Gate {
    path: PathBuf,
    end: pipe::Sender,
}

impl Gate {
    pub(crate) fn path(&self) -> &str {
        text(&self.path)
    }

    /// Lets one reader go on.
    pub(crate) fn open(&self) {
        assert_eq!(
            self.end.try_write(b"\n").ok(),
            Some(1),
            "an empty pipe takes a byte"
        );
    }
}

async fn read(end: &pipe::Receiver) -> Vec<u8> {
    let mut line = vec![0; 64];
    loop {
        end.readable().await.expect("a pipe can be waited for");
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
    path.to_str().expect("temporary paths are text")
}
