//! A tree of files in memory, for tests and for fuzzing.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{Facts, Found, ListError, Listed, ListedKind};

/// A tree in memory. There is always a root.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    nodes: BTreeMap<PathBuf, Node>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Node {
    Directory,
    /// A directory that can be neither listed nor searched.
    Sealed,
    File(Vec<u8>),
    Link(PathBuf),
}

impl Tree {
    /// Makes a tree from lines: `/a/` is a directory, `/a -> b` a link, `/a = text` a file that
    /// holds the text, `/a !` a directory that cannot be searched, and `/a` an empty file.
    /// Directories above are made, too.
    pub fn of(lines: &str) -> Self {
        let mut tree = Self::default();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some((path, target)) = line.split_once(" -> ") {
                tree.add(path, Node::Link(target.into()));
            } else if let Some((path, text)) = line.split_once(" = ") {
                tree.add(path, Node::File(text.replace("\\n", "\n").into()));
            } else if let Some(path) = line.strip_suffix(" !") {
                tree.add(path, Node::Sealed);
            } else if let Some(path) = line.strip_suffix('/') {
                tree.add(path, Node::Directory);
            } else {
                tree.add(line, Node::File(Vec::new()));
            }
        }
        tree
    }

    /// Returns every path but the root.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.nodes.keys().map(PathBuf::as_path)
    }

    fn add(&mut self, path: &str, node: Node) {
        let path = Path::new(path);
        for above in path.ancestors().skip(1).filter(|above| *above != ROOT) {
            let kept = self
                .nodes
                .entry(above.to_owned())
                .or_insert(Node::Directory);
            assert!(
                matches!(kept, Node::Directory | Node::Sealed),
                "{path:?} is below no directory"
            );
        }
        if path != ROOT && !path.as_os_str().is_empty() {
            self.nodes.insert(path.to_owned(), node);
        }
    }

    fn is_sealed(&self, path: Option<&Path>) -> bool {
        path.is_some_and(|path| self.nodes.get(path) == Some(&Node::Sealed))
    }
}

impl Facts for Tree {
    fn look(&self, path: &Path) -> Found {
        if path == ROOT {
            return Found::Directory;
        }
        if self.is_sealed(path.parent()) {
            return Found::Unknown;
        }
        match self.nodes.get(path) {
            Some(Node::Directory | Node::Sealed) => Found::Directory,
            Some(Node::File(_)) => Found::File,
            Some(Node::Link(target)) => Found::Link(target.clone()),
            None => Found::Missing,
        }
    }

    fn read(&self, path: &Path, most: usize) -> Option<Vec<u8>> {
        match self.nodes.get(path) {
            Some(Node::File(content)) if content.len() <= most => Some(content.clone()),
            _ => None,
        }
    }

    fn list(&self, path: &Path, most: usize) -> Result<Vec<Listed>, ListError> {
        if self.is_sealed(Some(path)) {
            return Err(ListError::Unknown);
        }
        let mut listed = Vec::new();
        for (below, node) in &self.nodes {
            if below.parent() != Some(path) {
                continue;
            }
            if listed.len() == most {
                return Err(ListError::TooMany);
            }
            let kind = match node {
                Node::Directory | Node::Sealed => ListedKind::Directory,
                Node::File(_) => ListedKind::File,
                Node::Link(_) => ListedKind::Link,
            };
            let name = below.file_name().unwrap_or_default().to_owned();
            listed.push(Listed { name, kind });
        }
        Ok(listed)
    }
}

const ROOT: &str = "/";
