//! Facts about the host's files that the resolution of a policy depends on.
//!
//! All access to the file system goes through [`FileFacts`], so that tests and fuzzing can replace
//! it by a tree in memory. Symbolic links are reported, not followed. Not here: what the facts mean
//! (`policy`).

use std::{
    ffi::OsString,
    fs::{self, File, FileType},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Answers questions about files.
pub trait FileFacts {
    /// Returns what exists at an absolute path. The parent must not contain symbolic links.
    fn lookup(&self, path: &Path) -> PathState;

    /// Returns the content of a file. `None` if it is longer than `limit` bytes or cannot be read.
    fn read(&self, path: &Path, limit: usize) -> Option<Vec<u8>>;

    /// Lists a directory in no particular order, including hidden names, without `.` and `..`.
    ///
    /// # Errors
    /// Fails if the directory cannot be listed or holds more than `limit` names.
    fn list(&self, path: &Path, limit: usize) -> Result<Vec<ListedEntry>, ListError>;
}

/// What exists at a path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PathState {
    /// The path does not exist.
    Missing,
    /// Not known: the parent directory cannot be searched, or reading it failed.
    Unknown,
    /// A directory.
    Directory,
    /// Any other file that is not a symbolic link.
    File,
    /// A symbolic link with this target.
    Link(PathBuf),
}

/// One entry of a directory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListedEntry {
    /// Name of the entry.
    pub name: OsString,
    /// Type of the entry.
    pub kind: ListedKind,
}

/// Type of a directory entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListedKind {
    /// A directory.
    Directory,
    /// Any other file that is not a symbolic link.
    File,
    /// A symbolic link.
    Link,
}

/// Why a directory could not be listed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// Host: permission denied, or reading the directory failed.
    #[error("cannot list directory")]
    Unknown,
    /// Caller: the directory exceeds the limit.
    #[error("directory contains too many names")]
    TooMany,
}

/// Reads the files of this host with the permissions of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostFacts;

impl FileFacts for HostFacts {
    fn lookup(&self, path: &Path) -> PathState {
        let kind = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata.file_type(),
            Err(error) => return state_from_error(&error),
        };
        if kind.is_dir() {
            PathState::Directory
        } else if kind.is_symlink() {
            fs::read_link(path).map_or_else(|error| state_from_error(&error), PathState::Link)
        } else {
            PathState::File
        }
    }

    fn read(&self, path: &Path, limit: usize) -> Option<Vec<u8>> {
        // Non-blocking, so that opening a FIFO cannot hang.
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
        let file = File::options()
            .read(true)
            .custom_flags(flags)
            .open(path)
            .ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut content = Vec::new();
        let limit_and_one = u64::try_from(limit).ok()?.saturating_add(1);
        file.take(limit_and_one).read_to_end(&mut content).ok()?;
        (content.len() <= limit).then_some(content)
    }

    fn list(&self, path: &Path, limit: usize) -> Result<Vec<ListedEntry>, ListError> {
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            // Removed meanwhile, or no longer a directory: treat it as empty.
            Err(error) if state_from_error(&error) == PathState::Missing => return Ok(Vec::new()),
            Err(_) => return Err(ListError::Unknown),
        };
        let mut listed = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|_| ListError::Unknown)?;
            let kind = match entry.file_type() {
                Ok(kind) => listed_kind(kind),
                Err(error) if state_from_error(&error) == PathState::Missing => continue,
                Err(_) => return Err(ListError::Unknown),
            };
            if listed.len() == limit {
                return Err(ListError::TooMany);
            }
            let name = entry.file_name();
            listed.push(ListedEntry { name, kind });
        }
        Ok(listed)
    }
}

fn listed_kind(kind: FileType) -> ListedKind {
    if kind.is_dir() {
        ListedKind::Directory
    } else if kind.is_symlink() {
        ListedKind::Link
    } else {
        ListedKind::File
    }
}

/// Maps an error of a lookup to a state.
fn state_from_error(error: &io::Error) -> PathState {
    match error.raw_os_error() {
        // A name that is too long cannot exist.
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG) => PathState::Missing,
        Some(_) | None => PathState::Unknown,
    }
}

/// File tree in memory, for tests and fuzzing. The root always exists.
#[cfg(any(test, fuzzing))]
#[derive(Clone, Debug, Default)]
pub struct MemoryTree {
    nodes: std::collections::BTreeMap<PathBuf, TreeNode>,
}

#[cfg(any(test, fuzzing))]
#[derive(Clone, Debug, Eq, PartialEq)]
enum TreeNode {
    Directory,
    /// A directory that can be neither listed nor searched.
    Unsearchable,
    File(Vec<u8>),
    Link(PathBuf),
}

#[cfg(any(test, fuzzing))]
impl MemoryTree {
    /// Builds a tree from lines: `/a/` is a directory, `/a -> b` a link, `/a = text` a file with
    /// this content, `/a !` an unsearchable directory, and `/a` an empty file. Parent directories
    /// are created.
    pub fn of(lines: &str) -> Self {
        let mut tree = Self::default();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some((path, target)) = line.split_once(" -> ") {
                tree.add(path, TreeNode::Link(target.into()));
            } else if let Some((path, text)) = line.split_once(" = ") {
                tree.add(path, TreeNode::File(text.replace("\\n", "\n").into()));
            } else if let Some(path) = line.strip_suffix(" !") {
                tree.add(path, TreeNode::Unsearchable);
            } else if let Some(path) = line.strip_suffix('/') {
                tree.add(path, TreeNode::Directory);
            } else {
                tree.add(line, TreeNode::File(Vec::new()));
            }
        }
        tree
    }

    /// Returns every path except the root.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.nodes.keys().map(PathBuf::as_path)
    }

    fn add(&mut self, path: &str, node: TreeNode) {
        let path = Path::new(path);
        for ancestor in path
            .ancestors()
            .skip(1)
            .filter(|ancestor| *ancestor != ROOT)
        {
            let parent = self
                .nodes
                .entry(ancestor.to_owned())
                .or_insert(TreeNode::Directory);
            assert!(
                matches!(parent, TreeNode::Directory | TreeNode::Unsearchable),
                "{path:?} is not below a directory"
            );
        }
        if path != ROOT && !path.as_os_str().is_empty() {
            self.nodes.insert(path.to_owned(), node);
        }
    }

    fn is_unsearchable(&self, path: Option<&Path>) -> bool {
        path.is_some_and(|path| self.nodes.get(path) == Some(&TreeNode::Unsearchable))
    }
}

#[cfg(any(test, fuzzing))]
impl FileFacts for MemoryTree {
    fn lookup(&self, path: &Path) -> PathState {
        if path == ROOT {
            return PathState::Directory;
        }
        if self.is_unsearchable(path.parent()) {
            return PathState::Unknown;
        }
        match self.nodes.get(path) {
            Some(TreeNode::Directory | TreeNode::Unsearchable) => PathState::Directory,
            Some(TreeNode::File(_)) => PathState::File,
            Some(TreeNode::Link(target)) => PathState::Link(target.clone()),
            None => PathState::Missing,
        }
    }

    fn read(&self, path: &Path, limit: usize) -> Option<Vec<u8>> {
        match self.nodes.get(path) {
            Some(TreeNode::File(content)) if content.len() <= limit => Some(content.clone()),
            _ => None,
        }
    }

    fn list(&self, path: &Path, limit: usize) -> Result<Vec<ListedEntry>, ListError> {
        if self.is_unsearchable(Some(path)) {
            return Err(ListError::Unknown);
        }
        let mut listed = Vec::new();
        for (child, node) in &self.nodes {
            if child.parent() != Some(path) {
                continue;
            }
            if listed.len() == limit {
                return Err(ListError::TooMany);
            }
            let kind = match node {
                TreeNode::Directory | TreeNode::Unsearchable => ListedKind::Directory,
                TreeNode::File(_) => ListedKind::File,
                TreeNode::Link(_) => ListedKind::Link,
            };
            let name = child.file_name().unwrap_or_default().to_owned();
            listed.push(ListedEntry { name, kind });
        }
        Ok(listed)
    }
}

#[cfg(any(test, fuzzing))]
const ROOT: &str = "/";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn path_states_are_recognised() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("directory")).unwrap();
        fs::write(at("file"), "text").unwrap();
        symlink("no/where", at("link")).unwrap();
        for (name, expected) in [
            ("directory", PathState::Directory),
            ("file", PathState::File),
            ("link", PathState::Link("no/where".into())),
            ("nothing", PathState::Missing),
            ("file/below", PathState::Missing),
            (&"x".repeat(300), PathState::Missing),
            ("nul\0", PathState::Unknown),
        ] {
            assert_eq!(HostFacts.lookup(&at(name)), expected, "{name}");
        }
        let mut listed = HostFacts.list(root.path(), 3).unwrap();
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        let kinds: Vec<_> = listed.into_iter().map(|entry| entry.kind).collect();
        let expected = [ListedKind::Directory, ListedKind::File, ListedKind::Link];
        assert_eq!(kinds, expected);
        assert_eq!(HostFacts.list(root.path(), 2), Err(ListError::TooMany));
        assert_eq!(HostFacts.list(&at("nothing"), 2), Ok(Vec::new()));
    }

    #[test]
    fn only_small_files_are_read() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "text").unwrap();
        symlink(&file, root.path().join("link")).unwrap();
        assert_eq!(HostFacts.read(&file, 4).as_deref(), Some(&b"text"[..]));
        assert_eq!(HostFacts.read(&file, 3), None);
        assert_eq!(HostFacts.read(root.path(), 9), None);
        assert_eq!(HostFacts.read(&root.path().join("link"), 9), None);
    }
}
