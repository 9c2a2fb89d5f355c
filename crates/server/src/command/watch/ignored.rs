//! Changes that nobody waits for.

use exec_env::filesystem::ExecutorFileSystem;
use exec_wire::{fs::ReadFile, path_uri::PathUri};
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::command::files::{below, persist, shown};

/// Files that say what is to be ignored, in a watched directory.
const FILES: [&str; 2] = [".gitignore", ".ignore"];
/// Names that are always ignored: what keeps history changes with every look at it.
const ALWAYS: [&str; 4] = [".git", ".hg", ".jj", ".svn"];

/// What is ignored below one watched path.
#[derive(Debug)]
pub(super) struct Ignored {
    root: PathUri,
    rules: Gitignore,
}

impl Ignored {
    /// Reads the ignore files of a watched directory. Without any, little is ignored.
    pub(super) async fn read(files: &dyn ExecutorFileSystem, root: &PathUri) -> Self {
        let mut rules = GitignoreBuilder::new("");
        for name in FILES {
            let Some(path) = below(root, name.as_bytes()) else {
                continue;
            };
            let read = ReadFile {
                path,
                follow_symlinks: None,
                sandbox: None,
            };
            let content = persist(|| files.read_file(read.clone())).await;
            let content = content.unwrap_or_default();
            for line in String::from_utf8_lossy(&content).lines() {
                // A broken line ignores nothing, as with git.
                drop(rules.add_line(None, line));
            }
        }
        Self {
            root: root.clone(),
            rules: rules.build().unwrap_or_else(|_| Gitignore::empty()),
        }
    }

    /// Tells whether a change of this path is ignored.
    pub(super) fn is_ignored(&self, path: &PathUri) -> bool {
        let (root, path) = (shown(&self.root), shown(path));
        let below = path.strip_prefix(&root).unwrap_or(&path);
        let below = below.trim_start_matches('/');
        if below.split('/').any(|name| ALWAYS.contains(&name)) {
            return true;
        }
        // A rule for directories covers what is in them; whether the last name is one is not told.
        !below.is_empty()
            && self
                .rules
                .matched_path_or_any_parents(below, false)
                .is_ignore()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_and_what_rules_name_is_ignored() {
        let mut rules = GitignoreBuilder::new("");
        for line in ["target/", "*.log", "!keep.log", "/only"] {
            rules.add_line(None, line).unwrap();
        }
        let ignored = Ignored {
            root: PathUri::parse("file:///srv/app").unwrap(),
            rules: rules.build().unwrap(),
        };
        for (path, expected) in [
            ("", false),
            ("/src/main.rs", false),
            ("/.git/index", true),
            ("/sub/.git", true),
            ("/target/debug/x", true),
            ("/a/b.log", true),
            ("/a/keep.log", false),
            ("/only", true),
            ("/a/only", false),
        ] {
            let uri = PathUri::parse(&format!("file:///srv/app{path}")).unwrap();
            assert_eq!(ignored.is_ignored(&uri), expected, "{path}");
        }
    }
}
