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
pub struct SandboxPlan {
    /// Files.
    pub files: FileAccess,
    /// Network.
    pub network: NetworkScope,
}

/// Which files may be used.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum FileAccess {
    /// All that the account may use.
    All,
    /// What the view shows.
    View(FileView),
}

/// Which network may be used.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum NetworkScope {
    /// The host's.
    Host,
    /// None.
    None,
}

/// Which files may be used, and how: what holds for the root, and what holds below it instead.
///
/// The layer that is nearest above a path counts.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct FileView {
    /// What holds where no layer does: [`PathAccess::Read`] or [`PathAccess::Hidden`]. A root that
    /// may be written is a layer for `/` above a base that may be read.
    pub base: PathAccess,
    /// What holds below some paths that exist: each path once, those above before those below, and
    /// none that says what holds anyway.
    pub layers: Vec<ViewLayer>,
    /// What must not come to be: names that do not exist, or are symbolic links, in directories
    /// that may be written. Each directory exists.
    pub forbidden: Vec<ForbiddenName>,
    /// Symbolic links that a policy's own paths pass through (`/bin` on many hosts), so that a view
    /// made from nothing has them, too: absolute path of the link, and what it says. Only those on
    /// the way to readable or writable entries, each once, sorted. Empty if the base is
    /// [`PathAccess::Read`].
    pub links: Vec<(PathBuf, PathBuf)>,
}

/// What may be done with a path and everything below it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct ViewLayer {
    /// The path. It exists.
    pub path: PathBuf,
    /// What is there.
    pub kind: PathKind,
    /// What may be done.
    pub access: PathAccess,
}

/// What may be done with a path.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum PathAccess {
    /// Nothing. Where a layer says so, the path is there and cannot be read; where the base does,
    /// the path is not there.
    Hidden,
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

/// What is at a path.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PathKind {
    /// A directory.
    Directory,
    /// Anything else.
    File,
}

/// A name that must not come to be.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ForbiddenName {
    /// Where.
    pub directory: PathBuf,
    /// The name.
    pub name: OsString,
}

impl FileView {
    /// Tells what may be done with a path that holds no symbolic link.
    pub fn access(&self, path: &Path) -> PathAccess {
        let above = |layer: &&ViewLayer| path.starts_with(&layer.path);
        self.layers
            .iter()
            .filter(above)
            .max_by_key(|layer| layer.path.components().count())
            .map_or(self.base, |layer| layer.access)
    }
}
