//! File tree in memory, for tests and fuzzing.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{FileFacts, ListError, ListedEntry, ListedKind, PathState};

/// File tree in memory. The root always exists.
#[derive(Clone, Debug, Default)]
pub struct MemoryTree {
    nodes: BTreeMap<PathBuf, TreeNode>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum TreeNode {
    Directory,
    /// A directory that can be neither listed nor searched.
    Unsearchable,
    File(Vec<u8>),
    Link(PathBuf),
}

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

const ROOT: &str = "/";
