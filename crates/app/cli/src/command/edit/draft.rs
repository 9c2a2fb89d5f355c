//! The copy that is edited: a file of our own in a directory that nobody else can look into.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder},
    io,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
    process::ExitStatus,
};

use tokio::process::Command;

/// A copy here. Dropping it leaves it where it is.
#[derive(Debug)]
pub(super) struct Draft {
    directory: PathBuf,
    file: PathBuf,
}

impl Draft {
    /// Writes the copy, under the name that the file has: editors look at it.
    pub(super) fn write(name: &[u8], content: &[u8]) -> io::Result<Self> {
        let unique = format!("exec-server-edit-{}", uuid::Uuid::new_v4().simple());
        let directory = std::env::temp_dir().join(unique);
        DirBuilder::new().mode(0o700).create(&directory)?;
        let file = directory.join(OsStr::from_bytes(name));
        let draft = Self { directory, file };
        match fs::write(&draft.file, content) {
            Ok(()) => Ok(draft),
            Err(error) => {
                draft.remove();
                Err(error)
            }
        }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.file
    }

    /// Lets somebody edit it. The editor may have arguments of its own, and is found by the shell as
    /// `git` does.
    pub(super) async fn edit(&self, editor: &OsStr) -> io::Result<ExitStatus> {
        let mut line = OsString::from(editor);
        line.push(" \"$@\"");
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(line)
            .arg("sh")
            .arg(&self.file)
            .spawn()?;
        loop {
            tokio::select! {
                status = child.wait() => return status,
                // Ctrl-C is the editor's.
                pressed = tokio::signal::ctrl_c() => pressed?,
            }
        }
    }

    /// Reads what it holds now; some editors put another file in its place.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        fs::read(&self.file)
    }

    /// Removes it, and what the editor left beside it.
    pub(super) fn remove(&self) {
        // What is left lies in a directory for what is temporary.
        drop(fs::remove_dir_all(&self.directory));
    }
}
