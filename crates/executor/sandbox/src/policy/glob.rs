//! What a glob says, without a look at the host: where it starts, and what it matches below that.

use std::path::{Path, PathBuf};

use exec_wire::limits::MAX_PATTERN_BYTES;
use globset::{Glob, GlobBuilder};

use super::error::GlobFault;

/// Before a glob that relates to each project root.
const PROJECT_ROOTS: &str = "codex-project-roots://";

/// A glob. `*` and `?` stop at a slash, `**` does not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Pattern {
    pub(super) anchor: Anchor,
    /// Names before the first wildcard; `..` may be among them.
    fixed: Vec<String>,
    /// What is left. Absent: the glob names one path.
    pub(super) wild: Option<Wild>,
}

/// What a glob relates to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Anchor {
    Root,
    Cwd,
    ProjectRoots,
}

/// A glob from its first wildcard on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Wild {
    pub(super) glob: Glob,
    /// How many names its matches have. Absent: any number.
    pub(super) depth: Option<usize>,
}

impl Pattern {
    /// Reads a glob.
    pub(super) fn parse(text: &str) -> Result<Self, GlobFault> {
        if text.len() > MAX_PATTERN_BYTES {
            return Err(GlobFault::TooLong);
        }
        if text.contains('\0') {
            return Err(GlobFault::Broken("it contains a NUL byte".to_owned()));
        }
        let (anchor, names) = match text.strip_prefix(PROJECT_ROOTS) {
            Some(below) if below.starts_with('/') => return Err(GlobFault::Absolute),
            Some(below) => (Anchor::ProjectRoots, below),
            None if text.starts_with('/') => (Anchor::Root, text),
            None => (Anchor::Cwd, text),
        };
        let names: Vec<&str> = names.split('/').filter(|name| !name.is_empty()).collect();
        let fixed = names.iter().take_while(|name| is_fixed(name)).count();
        let (fixed, wild) = names.split_at(fixed);
        if wild.iter().any(|name| matches!(*name, "." | "..")) {
            return Err(GlobFault::Dots);
        }
        let plain = fixed.iter().filter(|name| **name != ".");
        Ok(Self {
            anchor,
            fixed: plain.map(ToString::to_string).collect(),
            wild: (!wild.is_empty()).then(|| Wild::new(wild)).transpose()?,
        })
    }

    /// Returns where the glob starts, if it relates to `anchor`. Links are not looked at.
    pub(super) fn base(&self, anchor: &Path) -> PathBuf {
        let mut base = anchor.to_owned();
        for name in &self.fixed {
            if name == ".." {
                base.pop();
            } else {
                base.push(name);
            }
        }
        base
    }
}

impl Wild {
    fn new(names: &[&str]) -> Result<Self, GlobFault> {
        let text = names.join("/");
        let glob = GlobBuilder::new(&text)
            .literal_separator(true)
            .build()
            .map_err(|error| GlobFault::Broken(error.kind().to_string()))?;
        // Classes, alternatives and what is escaped may hold slashes of their own.
        let slashes_count = !text.contains("**") && !text.contains(['[', '{', '\\']);
        let depth = slashes_count.then_some(names.len());
        Ok(Self { glob, depth })
    }
}

/// Tells whether a name stands for itself.
fn is_fixed(name: &str) -> bool {
    !name.contains(['*', '?', '[', '{', '}', '\\'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_is_split_at_its_first_wildcard() {
        for (text, anchor, base, wild, depth) in [
            ("**/.env", Anchor::Cwd, "/ws", Some("**/.env"), None),
            ("./a//*.pem", Anchor::Cwd, "/ws/a", Some("*.pem"), Some(1)),
            ("../*/x/", Anchor::Cwd, "/", Some("*/x"), Some(2)),
            (".env", Anchor::Cwd, "/ws/.env", None, None),
            ("/etc/s*", Anchor::Root, "/ws/etc", Some("s*"), Some(1)),
            (
                "codex-project-roots://a/{b/c,d}",
                Anchor::ProjectRoots,
                "/ws/a",
                Some("{b/c,d}"),
                None,
            ),
        ] {
            let pattern = Pattern::parse(text).unwrap();
            assert_eq!(pattern.anchor, anchor, "{text}");
            assert_eq!(pattern.base(Path::new("/ws")), Path::new(base), "{text}");
            let found = pattern.wild.as_ref();
            assert_eq!(found.map(|wild| wild.glob.glob()), wild, "{text}");
            assert_eq!(found.and_then(|wild| wild.depth), depth, "{text}");
        }
    }

    #[test]
    fn a_glob_that_would_not_do_what_it_seems_to_is_refused() {
        for (text, fault) in [
            ("*/../x", "`..` after"),
            ("**/./x", "after a wildcard"),
            (
                "codex-project-roots:///etc/*",
                "relative to the project roots",
            ),
            ("a/[b", "cannot be used"),
            ("a/{b", "cannot be used"),
            ("a/b}", "cannot be used"),
            ("a\0b", "NUL"),
            (&"x".repeat(MAX_PATTERN_BYTES + 1), "longer than"),
        ] {
            let found = Pattern::parse(text).unwrap_err().to_string();
            assert!(found.contains(fault), "{text}: {found}");
        }
    }
}
