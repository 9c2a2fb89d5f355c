//! What a policy comes to on this host, whoever enforces it.
//!
//! Paths are absolute, native and without symbolic links. Not here: how it is enforced.

pub mod missing_feature;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// What a command, or an operation on files, may use.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Plan {
    /// Files.
    pub files: Files,
    /// Network.
    pub network: Network,
}

/// Which files may be used.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Files {
    /// All that the account may use.
    All,
    /// What the view shows.
    View(View),
}

/// Which network may be used.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Network {
    /// The host's.
    Host,
    /// None.
    None,
}

/// Which files may be used, and how: what holds for the root, and what holds below it instead.
///
/// The layer that is nearest above a path counts.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct View {
    /// What holds where no layer does: [`Access::Read`] or [`Access::Hidden`]. A root that may be
    /// written is a layer for `/` above a base that may be read.
    pub base: Access,
    /// What holds below some paths that exist: each path once, those above before those below, and
    /// none that says what holds anyway.
    pub layers: Vec<Layer>,
    /// What must not come to be: names that do not exist, or are symbolic links, in directories that
    /// may be written. Each directory exists.
    pub forbidden: Vec<Forbidden>,
    /// Symbolic links that a policy's own paths pass through (`/bin` on many hosts), so that a view
    /// made from nothing has them, too: absolute path of the link, and what it says. Only those on the
    /// way to readable or writable entries, each once, sorted. Empty if the base is [`Access::Read`].
    pub links: Vec<(PathBuf, PathBuf)>,
}

/// What may be done with a path and everything below it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Layer {
    /// The path. It exists.
    pub path: PathBuf,
    /// What is there.
    pub kind: Kind,
    /// What may be done.
    pub access: Access,
}

/// What may be done with a path.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Access {
    /// Nothing. Where a layer says so, the path is there and cannot be read; where the base does, the
    /// path is not there.
    Hidden,
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

/// What is at a path.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// Anything else.
    File,
}

/// A name that must not come to be.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Forbidden {
    /// Where.
    pub directory: PathBuf,
    /// The name.
    pub name: OsString,
}

impl View {
    /// Tells what may be done with a path that holds no symbolic link.
    pub fn access(&self, path: &Path) -> Access {
        let above = |layer: &&Layer| path.starts_with(&layer.path);
        self.layers
            .iter()
            .filter(above)
            .max_by_key(|layer| layer.path.components().count())
            .map_or(self.base, |layer| layer.access)
    }
}
