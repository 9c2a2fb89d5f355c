//! The watched directories of one tree, by the kernel's numbers.
//!
//! A directory knows its parent and not its path, so a rename is one step whatever lies below.
//! Invariant: going from parent to parent ends, at the root or where a parent is not known any more.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use crate::inotify::WatchDescriptor;

/// The directories.
#[derive(Debug)]
pub(super) struct DirectoryTree {
    root: WatchDescriptor,
    path: PathBuf,
    nodes: HashMap<WatchDescriptor, DirectoryNode>,
}

impl DirectoryTree {
    /// Begins with the root, which is at `path` for ever.
    pub(super) fn new(root: WatchDescriptor, path: PathBuf) -> Self {
        Self {
            root,
            path,
            nodes: HashMap::from([(root, DirectoryNode::default())]),
        }
    }

    /// Puts a directory at its place, new or from another place.
    pub(super) fn place(
        &mut self,
        directory: WatchDescriptor,
        parent: WatchDescriptor,
        name: &OsStr,
    ) -> DirectoryPlacement {
        if !self.nodes.contains_key(&parent) || self.is_at_or_above(directory, parent) {
            return DirectoryPlacement::Nowhere;
        }
        let known = self.nodes.contains_key(&directory);
        if known && self.child(parent, name) == Some(directory) {
            return DirectoryPlacement::Stayed;
        }
        self.leave_parent(directory);
        let mut displaced = None;
        if let Some(node) = self.nodes.get_mut(&parent) {
            displaced = node.children.insert(name.to_owned(), directory);
        }
        let node = self.nodes.entry(directory).or_default();
        node.place = Some((parent, name.to_owned()));
        if known {
            DirectoryPlacement::Moved { displaced }
        } else {
            DirectoryPlacement::New { displaced }
        }
    }

    /// Takes a directory from its parent. It stays known, by the path it had.
    pub(super) fn detach(
        &mut self,
        parent: WatchDescriptor,
        name: &OsStr,
    ) -> Option<WatchDescriptor> {
        self.nodes.get_mut(&parent)?.children.remove(name)
    }

    /// Forgets a directory and all below it, and returns them.
    pub(super) fn remove(&mut self, directory: WatchDescriptor) -> Vec<WatchDescriptor> {
        self.leave_parent(directory);
        let mut removed = Vec::new();
        let mut left = vec![directory];
        while let Some(directory) = left.pop() {
            if let Some(node) = self.nodes.remove(&directory) {
                removed.push(directory);
                left.extend(node.children.into_values());
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

    /// Tells whether a directory is where the tree says: it may have been detached.
    pub(super) fn is_attached(&self, directory: WatchDescriptor) -> bool {
        match self
            .nodes
            .get(&directory)
            .and_then(|node| node.place.as_ref())
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

    /// Returns the path of a directory, unless one on the way is not known any more.
    pub(super) fn path(&self, directory: WatchDescriptor) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut directory = directory;
        while directory != self.root {
            let (parent, name) = self.nodes.get(&directory)?.place.as_ref()?;
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
            .and_then(|node| node.place.clone())
        else {
            return;
        };
        if self.child(parent, &name) == Some(directory) {
            self.detach(parent, &name);
        }
    }

    fn is_at_or_above(&self, directory: WatchDescriptor, below: WatchDescriptor) -> bool {
        let mut below = below;
        while below != directory {
            let place = self.nodes.get(&below).and_then(|node| node.place.as_ref());
            let Some((parent, _)) = place else {
                return false;
            };
            below = *parent;
        }
        true
    }
}

/// What came of placing a directory. What had its name before is detached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DirectoryPlacement {
    /// It was not known.
    New { displaced: Option<WatchDescriptor> },
    /// It was known elsewhere.
    Moved { displaced: Option<WatchDescriptor> },
    /// It was known there.
    Stayed,
    /// It cannot be: the parent is not known, or would be below itself.
    Nowhere,
}

#[derive(Debug, Default)]
struct DirectoryNode {
    place: Option<(WatchDescriptor, OsString)>,
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
    fn a_rename_moves_all_that_lies_below() {
        let mut directories = a_with_b_below();
        let placed = directories.place(A, ROOT, OsStr::new("z"));
        assert_eq!(placed, DirectoryPlacement::Moved { displaced: None });
        assert_eq!(directories.path(B).as_deref(), Some(Path::new("/r/z/b")));
        assert_eq!(directories.child(ROOT, OsStr::new("a")), None);
    }

    #[test]
    fn a_directory_is_never_below_itself() {
        let mut directories = a_with_b_below();
        assert_eq!(
            directories.place(A, B, OsStr::new("a")),
            DirectoryPlacement::Nowhere
        );
        assert_eq!(
            directories.place(ROOT, B, OsStr::new("r")),
            DirectoryPlacement::Nowhere
        );
        assert_eq!(directories.path(B).as_deref(), Some(Path::new("/r/a/b")));
    }

    #[test]
    fn what_is_removed_is_removed_with_all_below() {
        let mut directories = a_with_b_below();
        let mut removed = directories.remove(A);
        removed.sort_unstable();
        assert_eq!(removed, [A, B]);
        assert_eq!(directories.len(), 1);
        assert_eq!(directories.path(B), None);
    }

    #[test]
    fn a_detached_directory_keeps_its_path_until_it_is_placed() {
        let mut directories = a_with_b_below();
        assert_eq!(directories.detach(ROOT, OsStr::new("a")), Some(A));
        assert!(!directories.is_attached(A));
        assert_eq!(directories.path(B).as_deref(), Some(Path::new("/r/a/b")));
        let other = WatchDescriptor(4);
        directories.place(other, ROOT, OsStr::new("c"));
        let placed = directories.place(A, ROOT, OsStr::new("c"));
        let displaced = Some(other);
        assert_eq!(placed, DirectoryPlacement::Moved { displaced });
        assert!(directories.is_attached(A));
        assert!(!directories.is_attached(other));
    }
}
