//! A directory of a case's own, with pipes in it that tell when processes live and let them go on.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use tokio::net::unix::pipe;

use crate::within::within;

/// A directory that is removed with its value.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a temporary directory can be made"),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
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

    fn fifo(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .expect("a fifo can be made");
        path
    }
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
