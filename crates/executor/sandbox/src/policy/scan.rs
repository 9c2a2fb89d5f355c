//! What globs match on this host.
//!
//! Hidden names count like others. Links to directories are not followed; a link that matches is a
//! match. Not here: what a match means.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use globset::GlobSet;

use super::{
    bounds::{MAX_MATCHES, MAX_SCANNED},
    error::{GlobFault, PolicyError},
    target::DenyGlob,
    trace::{End, Paths, Trace},
};
use crate::{
    facts::{Facts, ListError, ListedKind},
    plan::Kind,
};

/// What was found. All of it is to be denied.
#[derive(Debug, Default)]
pub(super) struct Matches {
    /// What matches, if it is no link.
    pub(super) plain: Vec<(PathBuf, Kind)>,
    /// Links that match.
    pub(super) links: Vec<PathBuf>,
    /// Where globs start, if that is behind links or cannot be reached.
    pub(super) bases: Vec<Trace>,
    /// Directories that cannot be listed: there may be matches below.
    pub(super) sealed: Vec<PathBuf>,
}

/// Looks for what the globs match, at most `depth` names below where each starts.
///
/// What is below a match is denied with it and not listed again, unless it is one of the `allowed`
/// paths or below one: their own entries count there, and not the match above.
pub(super) fn scan(
    globs: &[DenyGlob],
    depth: Option<usize>,
    allowed: &BTreeSet<PathBuf>,
    paths: &mut Paths<'_>,
) -> Result<Matches, PolicyError> {
    let mut matches = Matches::default();
    // Globs that start at the same place look for their matches together.
    let mut places: BTreeMap<PathBuf, Vec<&DenyGlob>> = BTreeMap::new();
    for glob in globs {
        let trace = paths.trace(&glob.base);
        if let End::There { path, kind } = &trace.end
            && *kind == Kind::Directory
        {
            if path.parent().is_none() {
                return Err(glob.error(GlobFault::Unanchored));
            }
            places.entry(path.clone()).or_default().push(glob);
        }
        matches.bases.push(trace);
    }
    let mut sets: BTreeMap<Vec<&str>, GlobSet> = BTreeMap::new();
    let mut scan = Scan {
        facts: paths.facts(),
        allowed,
        left: MAX_SCANNED,
        matches,
    };
    for (base, globs) in &places {
        let mut texts: Vec<&str> = globs.iter().map(|glob| glob.wild.glob.glob()).collect();
        texts.sort_unstable();
        texts.dedup();
        let set = match sets.get(&texts) {
            Some(set) => set.clone(),
            None => compile(globs)?,
        };
        sets.insert(texts, set.clone());
        let place = Place {
            base,
            globs,
            set,
            depth: depth_of(globs).min(depth.unwrap_or(usize::MAX)),
        };
        scan.look_below(&place)?;
    }
    Ok(scan.matches)
}

/// Where globs start.
struct Place<'a> {
    base: &'a Path,
    globs: &'a [&'a DenyGlob],
    set: GlobSet,
    depth: usize,
}

struct Scan<'a> {
    facts: &'a dyn Facts,
    /// Paths that entries of their own allow.
    allowed: &'a BTreeSet<PathBuf>,
    /// Names that may still be looked at.
    left: usize,
    matches: Matches,
}

/// A directory whose names are to be looked at.
struct Directory {
    /// Below where the globs start.
    below: PathBuf,
    /// How many names that has.
    depth: usize,
    /// Whether it, or something above it, matches, with no allowed path in between.
    denied: bool,
}

impl Scan<'_> {
    fn look_below(&mut self, place: &Place<'_>) -> Result<(), PolicyError> {
        let mut todo = vec![Directory {
            below: PathBuf::new(),
            depth: 0,
            denied: false,
        }];
        while let Some(directory) = todo.pop() {
            let path = join(place.base, &directory.below);
            let names = match self.facts.list(&path, self.left) {
                Ok(names) => names,
                Err(ListError::TooMany) => return Err(place.error(GlobFault::TooMuchToScan)),
                Err(ListError::Unknown) => {
                    if !directory.denied {
                        self.matches.sealed.push(path);
                    }
                    continue;
                }
            };
            self.left = self.left.saturating_sub(names.len());
            for entry in names {
                let below = directory.below.join(&entry.name);
                let matches = place.set.is_match(&below);
                let path = place.base.join(&below);
                let denied = directory.denied && !self.allowed.contains(&path);
                match entry.kind {
                    ListedKind::Link if matches => self.matches.links.push(path),
                    ListedKind::Link => {}
                    ListedKind::File if matches && !denied => {
                        self.matches.plain.push((path, Kind::File));
                    }
                    ListedKind::File => {}
                    ListedKind::Directory => {
                        if matches && !denied {
                            self.matches.plain.push((path, Kind::Directory));
                        }
                        let depth = directory.depth + 1;
                        if depth < place.depth {
                            // A link below may match, too, and leads elsewhere.
                            let denied = denied || matches;
                            todo.push(Directory {
                                below,
                                depth,
                                denied,
                            });
                        }
                    }
                }
                if self.matches.count() > MAX_MATCHES {
                    return Err(place.error(GlobFault::TooManyMatches));
                }
            }
        }
        Ok(())
    }
}

impl Matches {
    fn count(&self) -> usize {
        self.plain.len() + self.links.len() + self.sealed.len()
    }
}

impl Place<'_> {
    /// Blames the first glob that starts here.
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
        set.add(glob.wild.glob.clone());
    }
    set.build().map_err(|error| {
        let fault = GlobFault::Broken(error.kind().to_string());
        match globs.first() {
            Some(glob) => glob.error(fault),
            None => PolicyError::TooManyGlobs,
        }
    })
}

/// Returns how deep the deepest of some globs looks.
fn depth_of(globs: &[&DenyGlob]) -> usize {
    let depths = globs.iter().map(|glob| glob.wild.depth);
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
