//! Plan of a sandbox: what a policy allows on this host, independent of the mechanism.
//!
//! Paths are absolute, native and free of symbolic links. Not here: how a plan is enforced.

pub mod missing_feature;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// What a command or a file operation may access.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct SandboxPlan {
    /// Accessible files.
    pub files: FileAccess,
    /// Accessible network.
    pub network: NetworkScope,
}

/// Accessible files.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum FileAccess {
    /// Every file that the account may access.
    All,
    /// Files according to a view.
    View(FileView),
}

/// Accessible network.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum NetworkScope {
    /// The host's network.
    Host,
    /// No network.
    None,
}

/// Access to files: a default for the root, and layers that override it below some paths.
///
/// The nearest layer above a path applies.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct FileView {
    /// Access where no layer applies: [`PathAccess::Read`] or [`PathAccess::Hidden`]. A writable
    /// root is a layer for `/` above a readable base.
    pub base: PathAccess,
    /// Overrides for existing paths. Each path occurs once, parents come before children, and no
    /// layer repeats the access that already applies.
    pub layers: Vec<ViewLayer>,
    /// Names that must not be created: they do not exist or are symbolic links, in writable
    /// directories. Each directory exists.
    pub forbidden: Vec<ForbiddenName>,
    /// Symbolic links on the policy's own paths (`/bin` on many hosts), which a view with a hidden
    /// base must recreate: absolute path of the link, and its target. Holds only links on the way
    /// to readable or writable entries, each once, sorted. Empty if the base is
    /// [`PathAccess::Read`].
    pub links: Vec<(PathBuf, PathBuf)>,
}

/// Access to a path and everything below it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct ViewLayer {
    /// Path of the layer. It exists.
    pub path: PathBuf,
    /// Type of the file.
    pub kind: PathKind,
    /// Access to the path.
    pub access: PathAccess,
}

/// Access to a path.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum PathAccess {
    /// No access. A path hidden by a layer exists but cannot be read; a path hidden by the base
    /// does not exist.
    Hidden,
    /// Read access.
    Read,
    /// Read and write access.
    Write,
}

/// Type of a file.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PathKind {
    /// A directory.
    Directory,
    /// Any other file.
    File,
}

/// A name that must not be created.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ForbiddenName {
    /// Parent directory.
    pub directory: PathBuf,
    /// Name in the directory.
    pub name: OsString,
}

impl FileView {
    /// Returns the access to a path. The path must not contain symbolic links.
    pub fn access(&self, path: &Path) -> PathAccess {
        let contains_path = |layer: &&ViewLayer| path.starts_with(&layer.path);
        self.layers
            .iter()
            .filter(contains_path)
            .max_by_key(|layer| layer.path.components().count())
            .map_or(self.base, |layer| layer.access)
    }
}
