//! Filters changes by ignore files and options.

use exec_env::filesystem::ExecutorFileSystem;
use exec_wire::path_uri::PathUri;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::command::{
    failure::CommandFailure,
    files::{child_path, display_path, read_file},
};

/// Ignore files in a watched directory.
const FILES: [&str; 2] = [".gitignore", ".ignore"];
/// Directories that are always ignored: version control data changes on every access.
const ALWAYS: [&str; 4] = [".git", ".hg", ".jj", ".svn"];

/// Ignore rules of one watched path.
#[derive(Debug)]
pub(super) struct IgnoreRules {
    root: PathUri,
    rules: Gitignore,
    filter: ChangeFilter,
}

/// Filter for changes, with globs like in `.gitignore`.
#[derive(Clone, Debug)]
pub(super) struct ChangeFilter {
    /// If not empty, only matching paths count.
    included: Gitignore,
    /// Matching paths do not count.
    excluded: Gitignore,
}

impl ChangeFilter {
    /// Compiles globs.
    pub(super) fn new(included: &[String], excluded: &[String]) -> Result<Self, CommandFailure> {
        Ok(Self {
            included: compile(included)?,
            excluded: compile(excluded)?,
        })
    }

    fn counts(&self, path: &str) -> bool {
        let matches =
            |globs: &Gitignore| globs.matched_path_or_any_parents(path, false).is_ignore();
        (self.included.is_empty() || matches(&self.included)) && !matches(&self.excluded)
    }
}

fn compile(globs: &[String]) -> Result<Gitignore, CommandFailure> {
    let mut compiled = GitignoreBuilder::new("");
    for glob in globs {
        let added = compiled.add_line(None, glob);
        added.map_err(|error| invalid(glob, &error))?;
    }
    let all_globs = globs.join(" ");
    compiled
        .build()
        .map_err(|error| invalid(&all_globs, &error))
}

fn invalid(glob: &str, error: &ignore::Error) -> CommandFailure {
    CommandFailure::usage(format!("invalid glob `{glob}`: {error}"))
}

impl IgnoreRules {
    /// Reads the ignore files of a watched directory.
    pub(super) async fn read(
        files: &dyn ExecutorFileSystem,
        root: &PathUri,
        filter: ChangeFilter,
    ) -> Self {
        let mut rules = GitignoreBuilder::new("");
        for name in FILES {
            let Some(path) = child_path(root, name.as_bytes()) else {
                continue;
            };
            let content = read_file(files, &path).await.unwrap_or_default();
            for line in String::from_utf8_lossy(&content).lines() {
                // An invalid line ignores nothing, like in git.
                drop(rules.add_line(None, line));
            }
        }
        Self {
            root: root.clone(),
            rules: rules.build().unwrap_or_else(|_| Gitignore::empty()),
            filter,
        }
    }

    /// Returns whether changes of this path are ignored.
    pub(super) fn is_ignored(&self, path: &PathUri) -> bool {
        let (root, path) = (display_path(&self.root), display_path(path));
        let relative = path.strip_prefix(&root).unwrap_or(&path);
        let relative = relative.trim_start_matches('/');
        if relative.split('/').any(|name| ALWAYS.contains(&name)) {
            return true;
        }
        if !relative.is_empty() && !self.filter.counts(relative) {
            return true;
        }
        // A directory rule covers its contents; whether the last component is a directory is
        // unknown.
        !relative.is_empty()
            && self
                .rules
                .matched_path_or_any_parents(relative, false)
                .is_ignore()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::failure::FailureKind;

    #[test]
    fn version_control_data_and_ignored_files_do_not_count() {
        let mut rules = GitignoreBuilder::new("");
        for line in ["target/", "*.log", "!keep.log", "/only"] {
            rules.add_line(None, line).unwrap();
        }
        let ignored = IgnoreRules {
            root: PathUri::parse("file:///srv/app").unwrap(),
            rules: rules.build().unwrap(),
            filter: ChangeFilter::new(&[], &[]).unwrap(),
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

    #[test]
    fn globs_filter_changes() {
        let globs = |globs: &[&str]| {
            globs
                .iter()
                .map(|&glob| glob.to_owned())
                .collect::<Vec<_>>()
        };
        let filter = |included: &[&str], excluded: &[&str]| {
            ChangeFilter::new(&globs(included), &globs(excluded)).unwrap()
        };
        let sources = filter(&["*.rs", "docs/**"], &["generated/", "tmp.rs"]);
        for (path, counts) in [
            ("src/main.rs", true),
            ("docs/a/b.md", true),
            ("README.md", false),
            ("generated/x.rs", false),
            ("src/tmp.rs", false),
        ] {
            assert_eq!(sources.counts(path), counts, "{path}");
        }
        let all_but = filter(&[], &["*.log"]);
        assert!(all_but.counts("a") && !all_but.counts("x/a.log"));
        let wrong = ChangeFilter::new(&globs(&["a{b"]), &[]).unwrap_err();
        assert_eq!(wrong.kind, FailureKind::Usage);
    }
}
