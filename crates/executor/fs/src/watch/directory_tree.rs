//! The watched directories of one tree, by watch descriptor.
//!
//! A node stores its parent instead of its path, so a rename is a single step, however large the
//! subtree is. Invariant: following parents ends, at the root or at a parent that was
//! forgotten.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use crate::inotify::WatchDescriptor;

/// The watched directories of a tree.
#[derive(Debug)]
pub(super) struct DirectoryTree {
    root: WatchDescriptor,
    path: PathBuf,
    nodes: HashMap<WatchDescriptor, DirectoryNode>,
}

impl DirectoryTree {
    /// Starts with the root, which stays at `path`.
    pub(super) fn new(root: WatchDescriptor, path: PathBuf) -> Self {
        Self {
            root,
            path,
            nodes: HashMap::from([(root, DirectoryNode::default())]),
        }
    }

    /// Inserts a directory, or moves a known one.
    pub(super) fn place(
        &mut self,
        directory: WatchDescriptor,
        parent: WatchDescriptor,
        name: &OsStr,
    ) -> DirectoryPlacement {
        if !self.nodes.contains_key(&parent) || self.is_at_or_above(directory, parent) {
            return DirectoryPlacement::Rejected;
        }
        let known = self.nodes.contains_key(&directory);
        if known && self.child(parent, name) == Some(directory) {
            return DirectoryPlacement::Unchanged;
        }
        self.leave_parent(directory);
        let mut displaced = None;
        if let Some(node) = self.nodes.get_mut(&parent) {
            displaced = node.children.insert(name.to_owned(), directory);
        }
        let node = self.nodes.entry(directory).or_default();
        node.location = Some((parent, name.to_owned()));
        if known {
            DirectoryPlacement::Moved { displaced }
        } else {
            DirectoryPlacement::New { displaced }
        }
    }

    /// Detaches a directory from its parent. It stays known under its old path.
    pub(super) fn detach(
        &mut self,
        parent: WatchDescriptor,
        name: &OsStr,
    ) -> Option<WatchDescriptor> {
        self.nodes.get_mut(&parent)?.children.remove(name)
    }

    /// Removes a directory and its subtree, and returns them.
    pub(super) fn remove(&mut self, directory: WatchDescriptor) -> Vec<WatchDescriptor> {
        self.leave_parent(directory);
        let mut removed = Vec::new();
        let mut stack = vec![directory];
        while let Some(directory) = stack.pop() {
            if let Some(node) = self.nodes.remove(&directory) {
                removed.push(directory);
                stack.extend(node.children.into_values());
            }
        }
        removed
    }

    pub(super) fn root(&self) -> WatchDescriptor {
        self.root
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn contains(&self, directory: WatchDescriptor) -> bool {
        self.nodes.contains_key(&directory)
    }

    /// Returns whether a directory is attached to its parent.
    pub(super) fn is_attached(&self, directory: WatchDescriptor) -> bool {
        match self
            .nodes
            .get(&directory)
            .and_then(|node| node.location.as_ref())
        {
            Some((parent, name)) => self.child(*parent, name) == Some(directory),
            None => directory == self.root,
        }
    }

    pub(super) fn child(&self, parent: WatchDescriptor, name: &OsStr) -> Option<WatchDescriptor> {
        self.nodes.get(&parent)?.children.get(name).copied()
    }

    pub(super) fn children(&self, parent: WatchDescriptor) -> Vec<(OsString, WatchDescriptor)> {
        let children = self.nodes.get(&parent).map(|node| node.children.iter());
        let children = children.into_iter().flatten();
        children
            .map(|(name, &child)| (name.clone(), child))
            .collect()
    }

    /// Returns the path of a directory. `None`: an ancestor has been forgotten.
    pub(super) fn path(&self, directory: WatchDescriptor) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut directory = directory;
        while directory != self.root {
            let (parent, name) = self.nodes.get(&directory)?.location.as_ref()?;
            names.push(name);
            directory = *parent;
        }
        let mut path = self.path.clone();
        path.extend(names.into_iter().rev());
        Some(path)
    }

    fn leave_parent(&mut self, directory: WatchDescriptor) {
        let Some((parent, name)) = self
            .nodes
            .get(&directory)
            .and_then(|node| node.location.clone())
        else {
            return;
        };
        if self.child(parent, &name) == Some(directory) {
            self.detach(parent, &name);
        }
    }

    fn is_at_or_above(&self, directory: WatchDescriptor, descendant: WatchDescriptor) -> bool {
        let mut descendant = descendant;
        while descendant != directory {
            let location = self
                .nodes
                .get(&descendant)
                .and_then(|node| node.location.as_ref());
            let Some((parent, _)) = location else {
                return false;
            };
            descendant = *parent;
        }
        true
    }
}

/// The result of placing a directory. A directory that had the name before is detached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DirectoryPlacement {
    /// It was not known.
    New { displaced: Option<WatchDescriptor> },
    /// It was known at another path.
    Moved { displaced: Option<WatchDescriptor> },
    /// It was known at this path.
    Unchanged,
    /// It cannot be placed: the parent is unknown, or would be below itself.
    Rejected,
}

#[derive(Debug, Default)]
struct DirectoryNode {
    location: Option<(WatchDescriptor, OsString)>,
    children: BTreeMap<OsString, WatchDescriptor>,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const ROOT: WatchDescriptor = WatchDescriptor(1);
    const A: WatchDescriptor = WatchDescriptor(2);
    const B: WatchDescriptor = WatchDescriptor(3);

    fn a_with_b_below() -> DirectoryTree {
        let mut directories = DirectoryTree::new(ROOT, PathBuf::from("/r"));
        directories.place(A, ROOT, OsStr::new("a"));
        directories.place(B, A, OsStr::new("b"));
        directories
    }

    #[test]
    fn rename_moves_the_whole_subtree() {
        let mut directories = a_with_b_below();
        let placement = directories.place(A, ROOT, OsStr::new("z"));
        assert_eq!(placement, DirectoryPlacement::Moved { displaced: None });
        assert_eq!(directories.path(B).as_deref(), Some(Path::new("/r/z/b")));
        assert_eq!(directories.child(ROOT, OsStr::new("a")), None);
    }

    #[test]
    fn directory_is_never_placed_below_itself() {
        let mut directories = a_with_b_below();
        assert_eq!(
            directories.place(A, B, OsStr::new("a")),
            DirectoryPlacement::Rejected
        );
        assert_eq!(
            directories.place(ROOT, B, OsStr::new("r")),
            DirectoryPlacement::Rejected
        );
        assert_eq!(directories.path(B).as_deref(), Some(Path::new("/r/a/b")));
    }

    #[test]
    fn removal_includes_the_subtree() {
        let mut directories = a_with_b_below();
        let mut removed = directories.remove(A);
        removed.sort_unstable();
        assert_eq!(removed, [A, B]);
        assert_eq!(directories.len(), 1);
        assert_eq!(directories.path(B), None);
    }

    #[test]
    fn detached_directory_keeps_its_path_until_placed() {
        let mut directories = a_with_b_below();
        assert_eq!(directories.detach(ROOT, OsStr::new("a")), Some(A));
        assert!(!directories.is_attached(A));
        assert_eq!(directories.path(B).as_deref(), Some(Path::new("/r/a/b")));
        let other = WatchDescriptor(4);
        directories.place(other, ROOT, OsStr::new("c"));
        let placement = directories.place(A, ROOT, OsStr::new("c"));
        let displaced = Some(other);
        assert_eq!(placement, DirectoryPlacement::Moved { displaced });
        assert!(directories.is_attached(A));
        assert!(!directories.is_attached(other));
    }
}
