//! Globs: parses them, and scans the host for their matches.
//!
//! Hidden names are treated like others. Links to directories are not followed, but a link can be a
//! match itself. Not here: what a match means.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use exec_wire::limits::MAX_PATTERN_BYTES;
use globset::{Glob, GlobBuilder, GlobSet};

use super::{
    MAX_MATCHES, MAX_SCANNED,
    entry_targets::DenyGlob,
    error::{GlobFault, PolicyError},
    path_trace::{PathTrace, PathTracer, TraceEnd},
};
use crate::{
    facts::{FileFacts, ListError, ListedKind},
    plan::PathKind,
};

/// Matches of all globs. Everything in here is denied.
#[derive(Debug, Default)]
pub(super) struct GlobMatches {
    /// Matches that are not symbolic links.
    pub(super) plain: Vec<(PathBuf, PathKind)>,
    /// Symbolic links that match.
    pub(super) links: Vec<PathBuf>,
    /// Base directories of globs that are behind links or unreachable.
    pub(super) bases: Vec<PathTrace>,
    /// Directories that cannot be listed and may contain matches.
    pub(super) unreadable: Vec<PathBuf>,
}

/// Scans for matches of the globs, at most `depth` levels below the base of each.
///
/// A match is denied with everything below it, which is not reported again. The exception is a path
/// in `allowed` and everything below: there its own entry applies instead of the match above.
pub(super) fn scan_globs(
    globs: &[DenyGlob],
    depth: Option<usize>,
    allowed: &BTreeSet<PathBuf>,
    tracer: &mut PathTracer<'_>,
) -> Result<GlobMatches, PolicyError> {
    let mut matches = GlobMatches::default();
    // Globs with the same base share one scan.
    let mut roots: BTreeMap<PathBuf, Vec<&DenyGlob>> = BTreeMap::new();
    for glob in globs {
        let trace = tracer.trace(&glob.base);
        if let TraceEnd::Exists { path, kind } = &trace.end
            && *kind == PathKind::Directory
        {
            if path.parent().is_none() {
                return Err(glob.error(GlobFault::Unanchored));
            }
            roots.entry(path.clone()).or_default().push(glob);
        }
        matches.bases.push(trace);
    }
    let mut sets: BTreeMap<Vec<&str>, GlobSet> = BTreeMap::new();
    let mut scan = GlobScan {
        facts: tracer.facts(),
        allowed,
        budget: MAX_SCANNED,
        matches,
    };
    for (base, globs) in &roots {
        let mut texts: Vec<&str> = globs.iter().map(|glob| glob.wildcard.glob.glob()).collect();
        texts.sort_unstable();
        texts.dedup();
        let set = match sets.get(&texts) {
            Some(set) => set.clone(),
            None => compile(globs)?,
        };
        sets.insert(texts, set.clone());
        let root = ScanRoot {
            base,
            globs,
            set,
            depth: max_depth(globs).min(depth.unwrap_or(usize::MAX)),
        };
        scan.scan_root(&root)?;
    }
    Ok(scan.matches)
}

/// Base directory of one or more globs.
struct ScanRoot<'a> {
    base: &'a Path,
    globs: &'a [&'a DenyGlob],
    set: GlobSet,
    depth: usize,
}

struct GlobScan<'a> {
    facts: &'a dyn FileFacts,
    /// Paths that have their own granting entry.
    allowed: &'a BTreeSet<PathBuf>,
    /// Number of names that may still be scanned.
    budget: usize,
    matches: GlobMatches,
}

/// A directory that is still to be scanned.
struct PendingDirectory {
    /// Path relative to the base.
    below: PathBuf,
    /// Number of components of `below`.
    depth: usize,
    /// The directory or a parent matches, with no allowed path in between.
    denied: bool,
}

impl GlobScan<'_> {
    fn scan_root(&mut self, root: &ScanRoot<'_>) -> Result<(), PolicyError> {
        let mut pending = vec![PendingDirectory {
            below: PathBuf::new(),
            depth: 0,
            denied: false,
        }];
        while let Some(directory) = pending.pop() {
            let path = join(root.base, &directory.below);
            let names = match self.facts.list(&path, self.budget) {
                Ok(names) => names,
                Err(ListError::TooMany) => return Err(root.error(GlobFault::TooMuchToScan)),
                Err(ListError::Unknown) => {
                    if !directory.denied {
                        self.matches.unreadable.push(path);
                    }
                    continue;
                }
            };
            self.budget = self.budget.saturating_sub(names.len());
            for entry in names {
                let below = directory.below.join(&entry.name);
                let matches = root.set.is_match(&below);
                let path = root.base.join(&below);
                let denied = directory.denied && !self.allowed.contains(&path);
                match entry.kind {
                    ListedKind::Link if matches => self.matches.links.push(path),
                    ListedKind::Link => {}
                    ListedKind::File if matches && !denied => {
                        self.matches.plain.push((path, PathKind::File));
                    }
                    ListedKind::File => {}
                    ListedKind::Directory => {
                        if matches && !denied {
                            self.matches.plain.push((path, PathKind::Directory));
                        }
                        let depth = directory.depth + 1;
                        if depth < root.depth {
                            // Continue below a match: a link there may match as well, and its
                            // target is elsewhere.
                            let denied = denied || matches;
                            pending.push(PendingDirectory {
                                below,
                                depth,
                                denied,
                            });
                        }
                    }
                }
                if self.matches.count() > MAX_MATCHES {
                    return Err(root.error(GlobFault::TooManyMatches));
                }
            }
        }
        Ok(())
    }
}

impl GlobMatches {
    fn count(&self) -> usize {
        self.plain.len() + self.links.len() + self.unreadable.len()
    }
}

impl ScanRoot<'_> {
    /// Attributes an error to the first glob with this base.
    fn error(&self, fault: GlobFault) -> PolicyError {
        match self.globs.first() {
            Some(glob) => glob.error(fault),
            None => PolicyError::TooManyTargets,
        }
    }
}

fn compile(globs: &[&DenyGlob]) -> Result<GlobSet, PolicyError> {
    let mut set = GlobSet::builder();
    for glob in globs {
        set.add(glob.wildcard.glob.clone());
    }
    set.build().map_err(|error| {
        let fault = GlobFault::Syntax(error.kind().to_string());
        match globs.first() {
            Some(glob) => glob.error(fault),
            None => PolicyError::TooManyGlobs,
        }
    })
}

/// Returns the maximum depth of some globs.
fn max_depth(globs: &[&DenyGlob]) -> usize {
    let depths = globs.iter().map(|glob| glob.wildcard.depth);
    depths
        .map(|depth| depth.unwrap_or(usize::MAX))
        .max()
        .unwrap_or_default()
}

/// Joins a path that may be empty.
fn join(base: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() {
        return base.to_owned();
    }
    base.join(below)
}

/// Prefix of a glob that is relative to each project root.
const PROJECT_ROOTS: &str = "codex-project-roots://";

/// Parsed glob. `*` and `?` do not match a slash, `**` does.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct GlobPattern {
    pub(super) anchor: GlobAnchor,
    /// Components before the first wildcard; may contain `..`.
    literal: Vec<String>,
    /// Components from the first wildcard on. Absent: the glob names one path.
    pub(super) wildcard: Option<WildcardTail>,
}

/// Directory that a glob is relative to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum GlobAnchor {
    Root,
    Cwd,
    ProjectRoots,
}

/// Part of a glob from the first wildcard on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct WildcardTail {
    pub(super) glob: Glob,
    /// Number of components of each match. Absent: any number.
    pub(super) depth: Option<usize>,
}

impl GlobPattern {
    /// Parses a glob.
    pub(super) fn parse(text: &str) -> Result<Self, GlobFault> {
        if text.len() > MAX_PATTERN_BYTES {
            return Err(GlobFault::TooLong);
        }
        if text.contains('\0') {
            return Err(GlobFault::Syntax("contains a NUL byte".to_owned()));
        }
        let (anchor, names) = match text.strip_prefix(PROJECT_ROOTS) {
            Some(below) if below.starts_with('/') => return Err(GlobFault::Absolute),
            Some(below) => (GlobAnchor::ProjectRoots, below),
            None if text.starts_with('/') => (GlobAnchor::Root, text),
            None => (GlobAnchor::Cwd, text),
        };
        let names: Vec<&str> = names.split('/').filter(|name| !name.is_empty()).collect();
        let literal = names.iter().take_while(|name| is_literal(name)).count();
        let (literal, wildcard) = names.split_at(literal);
        if wildcard.iter().any(|name| matches!(*name, "." | "..")) {
            return Err(GlobFault::Dots);
        }
        let plain = literal.iter().filter(|name| **name != ".");
        Ok(Self {
            anchor,
            literal: plain.map(ToString::to_string).collect(),
            wildcard: (!wildcard.is_empty())
                .then(|| WildcardTail::new(wildcard))
                .transpose()?,
        })
    }

    /// Returns the base directory of the glob below `anchor`, without resolving links.
    pub(super) fn base(&self, anchor: &Path) -> PathBuf {
        let mut base = anchor.to_owned();
        for name in &self.literal {
            if name == ".." {
                base.pop();
            } else {
                base.push(name);
            }
        }
        base
    }
}

impl WildcardTail {
    fn new(names: &[&str]) -> Result<Self, GlobFault> {
        let text = names.join("/");
        let glob = GlobBuilder::new(&text)
            .literal_separator(true)
            .build()
            .map_err(|error| GlobFault::Syntax(error.kind().to_string()))?;
        // Character classes, alternatives and escapes may contain slashes.
        let slashes_count = !text.contains("**") && !text.contains(['[', '{', '\\']);
        let depth = slashes_count.then_some(names.len());
        Ok(Self { glob, depth })
    }
}

/// Returns whether a component contains no wildcard.
fn is_literal(name: &str) -> bool {
    !name.contains(['*', '?', '[', '{', '}', '\\'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_is_split_at_its_first_wildcard() {
        for (text, anchor, base, wildcard, depth) in [
            ("**/.env", GlobAnchor::Cwd, "/ws", Some("**/.env"), None),
            (
                "./a//*.pem",
                GlobAnchor::Cwd,
                "/ws/a",
                Some("*.pem"),
                Some(1),
            ),
            ("../*/x/", GlobAnchor::Cwd, "/", Some("*/x"), Some(2)),
            (".env", GlobAnchor::Cwd, "/ws/.env", None, None),
            ("/etc/s*", GlobAnchor::Root, "/ws/etc", Some("s*"), Some(1)),
            (
                "codex-project-roots://a/{b/c,d}",
                GlobAnchor::ProjectRoots,
                "/ws/a",
                Some("{b/c,d}"),
                None,
            ),
        ] {
            let pattern = GlobPattern::parse(text).unwrap();
            assert_eq!(pattern.anchor, anchor, "{text}");
            assert_eq!(pattern.base(Path::new("/ws")), Path::new(base), "{text}");
            let parsed = pattern.wildcard.as_ref();
            assert_eq!(
                parsed.map(|wildcard| wildcard.glob.glob()),
                wildcard,
                "{text}"
            );
            assert_eq!(parsed.and_then(|wildcard| wildcard.depth), depth, "{text}");
        }
    }

    #[test]
    fn misleading_globs_are_refused() {
        for (text, fault) in [
            ("*/../x", "`..` after"),
            ("**/./x", "after a wildcard"),
            (
                "codex-project-roots:///etc/*",
                "relative to the project roots",
            ),
            ("a/[b", "is invalid"),
            ("a/{b", "is invalid"),
            ("a/b}", "is invalid"),
            ("a\0b", "NUL"),
            (&"x".repeat(MAX_PATTERN_BYTES + 1), "longer than"),
        ] {
            let message = GlobPattern::parse(text).unwrap_err().to_string();
            assert!(message.contains(fault), "{text}: {message}");
        }
    }
}
