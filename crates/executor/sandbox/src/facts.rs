//! What a policy needs to know about the host's files: the one door through which it looks.
//!
//! Nothing is followed here: a symbolic link is told as one. Not here: what the facts mean
//! (`policy`).

mod host;
#[cfg(any(test, fuzzing))]
mod tree;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

pub use host::HostFacts;
#[cfg(any(test, fuzzing))]
pub use tree::Tree;

/// Tells what is on the host.
pub trait Facts {
    /// Tells what is at an absolute path whose parent holds no symbolic link.
    fn look(&self, path: &Path) -> Found;

    /// Returns the content of a file, unless it is longer than `most` bytes or cannot be read.
    fn read(&self, path: &Path, most: usize) -> Option<Vec<u8>>;

    /// Lists a directory, hidden names included, `.` and `..` not; in no particular order.
    ///
    /// # Errors
    /// Fails if it cannot be listed, or holds more than `most` names.
    fn list(&self, path: &Path, most: usize) -> Result<Vec<Listed>, ListError>;
}

/// What is at a path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// Nothing, and nothing stands in the way of knowing.
    Missing,
    /// It cannot be told: the directory above cannot be searched, or reading it failed.
    Unknown,
    /// A directory.
    Directory,
    /// Anything else that is no link.
    File,
    /// A symbolic link to this.
    Link(PathBuf),
}

/// One name in a directory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Listed {
    /// The name.
    pub name: OsString,
    /// What it names.
    pub kind: ListedKind,
}

/// What a name in a directory names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListedKind {
    /// A directory.
    Directory,
    /// Anything else that is no link.
    File,
    /// A symbolic link.
    Link,
}

/// Why a directory is not listed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// Host: the account may not list it, or reading it failed.
    #[error("directory cannot be listed")]
    Unknown,
    /// Caller: there is more in it than may be looked at.
    #[error("directory holds too many names")]
    TooMany,
}
