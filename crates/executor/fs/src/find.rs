//! `fs/find`: finds files and directories by name.
//!
//! Traverses the same tree as `fs/search`: it skips ignored and hidden entries, links, pipes,
//! sockets and devices. The root itself is not part of the result.

#[cfg(test)]
mod tests;

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::Path,
};

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{FindPaths, FoundPaths},
    limits,
};
use globset::{GlobBuilder, GlobSet};
use nucleo_matcher::{
    Config, Matcher, Utf32Str,
    pattern::{Atom, AtomKind, CaseMatching, Normalization},
};
use rustix::fs::{FileType, stat};

use crate::{
    cancel_flag::CancelFlag,
    filtered_tree::FilteredTree,
    host_path::{host_error, invalid_request, native_path, uri},
};

/// Finds files and directories below a directory.
///
/// A glob is matched against the path relative to the root; a glob without a slash is matched
/// against the last name, so it matches at any depth. Results are sorted by the bytes of their
/// path.
///
/// A query matches if its letters occur in the path in this order; white space in it is ignored. It
/// is case-insensitive unless it contains a capital. The best matches come first: adjacent letters,
/// and letters at the start of a name or word, score higher. Among equal scores the shorter path
/// comes first.
///
/// # Errors
/// Rejects a request with neither or both of glob and query, an invalid glob, and a result limit
/// that is out of range. Fails if the root is not a directory that can be listed, or after a
/// cancellation.
pub fn find(find: &FindPaths, stop: &CancelFlag) -> Result<FoundPaths, FileError> {
    if !(1..=limits::MAX_FIND_RESULTS).contains(&find.max_results) {
        let max_results = limits::MAX_FIND_RESULTS;
        let text = format!("maxResults must be between 1 and {max_results}");
        return Err(FileError::Refused(text));
    }
    let criterion = match (&find.glob, &find.query) {
        (Some(glob), None) => FindCriterion::Glob(PathGlob::new(glob)?),
        (None, Some(query)) => FindCriterion::Query(FuzzyQuery::new(query)?),
        (Some(_), Some(_)) | (None, None) => {
            let text = "exactly one of glob and query is needed".to_owned();
            return Err(FileError::Refused(text));
        }
    };
    let root = native_path(&find.path)?;
    let metadata = stat(&root).map_err(|errno| host_error("look below", &root, errno))?;
    if !FileType::from_raw_mode(metadata.st_mode).is_dir() {
        return Err(invalid_request(
            "look below",
            &root,
            "it is not a directory",
        ));
    }
    let tree = FilteredTree::open(&root, stop)?;
    let (paths, is_truncated) = match criterion {
        FindCriterion::Glob(glob) => first_matches(tree, &glob, find.max_results),
        FindCriterion::Query(query) => best_matches(tree, query, find.max_results),
    };
    stop.check()?;
    let paths = paths
        .iter()
        .map(|below| uri(&root.join(OsStr::from_bytes(below))));
    Ok(FoundPaths {
        paths: paths.collect::<Result<_, _>>()?,
        truncated: is_truncated,
    })
}

enum FindCriterion {
    Glob(PathGlob),
    Query(FuzzyQuery),
}

/// Returns the first matching paths, and whether there are more.
fn first_matches(
    mut tree: FilteredTree<'_>,
    glob: &PathGlob,
    max_results: usize,
) -> (Vec<Vec<u8>>, bool) {
    let mut paths = Vec::new();
    for entry in tree.by_ref() {
        if !glob.is_match(&entry.below) {
            continue;
        }
        if paths.len() == max_results {
            return (paths, true);
        }
        paths.push(entry.below);
    }
    (paths, tree.is_truncated())
}

/// Returns the best matching paths, and whether there are more.
fn best_matches(
    mut tree: FilteredTree<'_>,
    mut query: FuzzyQuery,
    max_results: usize,
) -> (Vec<Vec<u8>>, bool) {
    let mut is_truncated = false;
    // The worst match is on top, and is dropped first.
    let mut ranking = BinaryHeap::new();
    for entry in tree.by_ref() {
        let Some(score) = query.score(&entry.below) else {
            continue;
        };
        ranking.push(RankedPath {
            score,
            below: entry.below,
        });
        if ranking.len() > max_results {
            ranking.pop();
            is_truncated = true;
        }
    }
    let ranked = ranking.into_sorted_vec();
    let paths = ranked.into_iter().map(|ranked| ranked.below).collect();
    (paths, is_truncated || tree.is_truncated())
}

/// A path and its score. Better matches compare as less.
#[derive(Debug, Eq, PartialEq)]
struct RankedPath {
    score: u16,
    below: Vec<u8>,
}

impl Ord for RankedPath {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |ranked: &Self| (Reverse(ranked.score), ranked.below.len());
        let by_rank = key(self).cmp(&key(other));
        by_rank.then_with(|| self.below.cmp(&other.below))
    }
}

impl PartialOrd for RankedPath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A fuzzy query for paths.
struct FuzzyQuery {
    atom: Atom,
    matcher: Matcher,
    letters: Vec<char>,
}

impl FuzzyQuery {
    fn new(query: &str) -> Result<Self, FileError> {
        check_length("query", query)?;
        let letters: String = query.split_whitespace().collect();
        Ok(Self {
            atom: Atom::new(
                &letters,
                CaseMatching::Smart,
                Normalization::Smart,
                AtomKind::Fuzzy,
                false,
            ),
            matcher: Matcher::new(Config::DEFAULT.match_paths()),
            letters: Vec::new(),
        })
    }

    /// Returns the score of a path, if it matches.
    fn score(&mut self, below: &[u8]) -> Option<u16> {
        let text = String::from_utf8_lossy(below);
        let path = Utf32Str::new(&text, &mut self.letters);
        self.atom.score(path, &mut self.matcher)
    }
}

/// A glob. `*` and `?` do not match a slash, `**` does. Without a slash, the glob matches file
/// names at any depth; with a leading slash it is anchored at the root. Matches raw bytes.
#[derive(Debug)]
pub(crate) struct PathGlob {
    set: GlobSet,
    scope: GlobScope,
}

/// The part of a path that a glob is matched against.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum GlobScope {
    Path,
    FileName,
}

impl PathGlob {
    /// Compiles a glob.
    ///
    /// # Errors
    /// Rejects globs that are too long or invalid.
    pub(crate) fn new(glob: &str) -> Result<Self, FileError> {
        check_length("glob", glob)?;
        let scope = if glob.contains('/') {
            GlobScope::Path
        } else {
            GlobScope::FileName
        };
        let anchored = glob.strip_prefix('/').unwrap_or(glob);
        let broken = |error: globset::Error| {
            FileError::Refused(format!("glob cannot be used: {}", error.kind()))
        };
        let compiled = GlobBuilder::new(anchored)
            .literal_separator(true)
            .build()
            .map_err(broken)?;
        let set = GlobSet::builder().add(compiled).build().map_err(broken)?;
        Ok(Self { set, scope })
    }

    /// Returns whether a path relative to the root matches.
    pub(crate) fn is_match(&self, below: &[u8]) -> bool {
        let text = match self.scope {
            GlobScope::Path => below,
            GlobScope::FileName => file_name(below),
        };
        self.set.is_match(Path::new(OsStr::from_bytes(text)))
    }
}

/// Returns the last component of a path.
pub(crate) fn file_name(below: &[u8]) -> &[u8] {
    below.rsplit(|&byte| byte == b'/').next().unwrap_or(below)
}

/// Rejects patterns that are too long.
pub(crate) fn check_length(what: &str, text: &str) -> Result<(), FileError> {
    if text.len() > limits::MAX_PATTERN_BYTES {
        let max_bytes = limits::MAX_PATTERN_BYTES;
        let text = format!("{what} is longer than {max_bytes} bytes");
        return Err(FileError::Refused(text));
    }
    Ok(())
}
