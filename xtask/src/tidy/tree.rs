//! The files of the workspace, read once. Build output and hidden directories are left out.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// One text file. Paths are relative to the root and have forward slashes.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Everything that rules look at.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Every file and directory.
    pub(crate) paths: BTreeSet<String>,
    pub(crate) rust: Vec<File>,
    pub(crate) markdown: Vec<File>,
    pub(crate) manifests: Vec<File>,
    /// The schemas below `docs/schema`.
    pub(crate) schemas: Vec<File>,
}

impl Tree {
    /// Reads what is below `root`.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut tree = Self::default();
        let mut todo = vec![root.to_owned()];
        while let Some(directory) = todo.pop() {
            let entries = fs::read_dir(&directory)
                .and_then(Iterator::collect::<io::Result<Vec<_>>>)
                .with_context(|| format!("cannot list `{}`", directory.display()))?;
            for entry in entries {
                let path = entry.path();
                let name = relative(root, &path);
                if is_skipped(&name) {
                    continue;
                }
                tree.paths.insert(name.clone());
                if entry.file_type()?.is_dir() {
                    todo.push(path);
                } else {
                    tree.take(name, &path)?;
                }
            }
        }
        for files in [
            &mut tree.rust,
            &mut tree.markdown,
            &mut tree.manifests,
            &mut tree.schemas,
        ] {
            files.sort_by(|left, right| left.path.cmp(&right.path));
        }
        Ok(tree)
    }

    /// Returns the text of a document.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.markdown
            .iter()
            .find(|file| file.path == path)
            .map(|file| file.text.as_str())
    }

    fn take(&mut self, name: String, path: &Path) -> anyhow::Result<()> {
        let files = match name.rsplit_once('.') {
            Some((_, "rs")) => &mut self.rust,
            Some((_, "md")) => &mut self.markdown,
            Some(("Cargo" | "fuzz/Cargo", "toml")) => return Ok(()),
            Some((stem, "json")) if stem.starts_with("docs/schema/") => &mut self.schemas,
            Some((stem, "toml")) if stem.ends_with("/Cargo") => &mut self.manifests,
            _ => return Ok(()),
        };
        match fs::read_to_string(path) {
            Ok(text) => files.push(File { path: name, text }),
            // Somebody works here, too: what vanished meanwhile is no file any more.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read `{name}`")),
        }
        Ok(())
    }
}

fn relative(root: &Path, path: &Path) -> String {
    let path: PathBuf = path.strip_prefix(root).unwrap_or(path).into();
    path.to_string_lossy().replace('\\', "/")
}

fn is_skipped(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with('.') || matches!(name, "target" | "node_modules") || path == "bench/out"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_documents_and_manifests_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        for path in [
            "src/a.rs",
            "b/Cargo.toml",
            "c.md",
            "Cargo.toml",
            "target/x.rs",
            "docs/schema/d.json",
            "e.json",
            ".git/y.md",
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "text").unwrap();
        }
        let tree = Tree::read(root.path()).unwrap();
        let paths = |files: &[File]| {
            files
                .iter()
                .map(|file| file.path.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(paths(&tree.rust), ["src/a.rs"]);
        assert_eq!(paths(&tree.markdown), ["c.md"]);
        assert_eq!(paths(&tree.manifests), ["b/Cargo.toml"]);
        assert_eq!(paths(&tree.schemas), ["docs/schema/d.json"]);
        assert!(tree.paths.contains("src") && !tree.paths.contains("target"));
        assert_eq!(tree.text("c.md"), Some("text"));
    }
}
