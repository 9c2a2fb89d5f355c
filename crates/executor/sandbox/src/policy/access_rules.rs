//! Access rules by path, collected from the entries of a policy and converted into a view.
//!
//! Also protects files below writable directories: metadata of tools that run outside the sandbox
//! and would execute what a command wrote there, and kernel settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::{
    MAX_GIT_FILE_BYTES, MAX_LAYERS,
    error::PolicyError,
    path_trace::{PathTrace, PathTracer, TraceEnd},
};
use crate::plan::{FileView, ForbiddenName, PathAccess, PathKind, ViewLayer};

/// Access by path. Paths contain no symbolic links. The longest matching path applies.
#[derive(Debug, Default)]
pub(super) struct AccessRules {
    layers: BTreeMap<PathBuf, (PathKind, PathAccess)>,
    /// Access of missing paths, with the first name on each that does not exist.
    missing: BTreeMap<PathBuf, (ForbiddenName, PathAccess)>,
    /// Names that must not be created, if their directory is writable.
    guarded_names: BTreeSet<ForbiddenName>,
    /// Paths that write entries name, not following a final link.
    named_for_write: BTreeSet<PathBuf>,
    /// Directories that write entries name behind replaceable links.
    replaceable_roots: BTreeSet<PathBuf>,
    /// Unsearchable directories, with the maximum access to each.
    ceilings: Vec<(PathBuf, PathAccess)>,
    /// Links on the way to accessible paths.
    links: BTreeMap<PathBuf, PathBuf>,
}

impl AccessRules {
    /// Adds an entry. Of two entries for one path, deny overrides write, and write overrides read.
    pub(super) fn add(&mut self, trace: PathTrace, access: PathAccess) {
        match access {
            PathAccess::Write => {
                self.named_for_write.insert(trace.named.clone());
            }
            // A mount cannot cover a link. The target is covered, and the link must not be
            // replaced.
            PathAccess::Read | PathAccess::Hidden => self.guard_links(&trace),
        }
        if access != PathAccess::Hidden {
            self.expose_links(&trace);
        }
        match trace.end {
            TraceEnd::Exists { path, kind } => {
                let access = access.min(max_access(&path));
                let (_, existing) = self.layers.entry(path).or_insert((kind, access));
                *existing = stronger_access(*existing, access);
            }
            TraceEnd::Missing { path, first } => {
                let access = access.min(max_access(&path));
                let (_, existing) = self.missing.entry(path).or_insert((first, access));
                *existing = stronger_access(*existing, access);
            }
            TraceEnd::Unsearchable(directory) => {
                let access = access.min(max_access(&directory));
                self.cap_access(directory, access);
            }
            TraceEnd::Unreachable => {}
        }
    }

    /// Adds a write entry behind a replaceable link, which grants nothing. The target still counts
    /// as a writable root: its metadata is protected, which may lie in another writable directory.
    pub(super) fn add_replaceable_write(&mut self, trace: PathTrace) {
        self.named_for_write.insert(trace.named);
        match trace.end {
            TraceEnd::Exists { path, kind } => {
                if self.access(&path) == PathAccess::Write {
                    let access = max_access(&path);
                    self.layers.insert(path.clone(), (kind, access));
                }
                if kind == PathKind::Directory {
                    self.replaceable_roots.insert(path);
                }
            }
            TraceEnd::Missing { path, first } => {
                if max_access(&path) != PathAccess::Write {
                    self.guarded_names.insert(first);
                }
            }
            TraceEnd::Unsearchable(directory) => {
                let access = max_access(&directory);
                self.cap_access(directory, access);
            }
            TraceEnd::Unreachable => {}
        }
    }

    /// Adds the base directory of a denying glob.
    pub(super) fn add_glob_base(&mut self, trace: &PathTrace) {
        self.guard_links(trace);
        if let TraceEnd::Unsearchable(directory) = &trace.end {
            self.cap_access(directory.clone(), PathAccess::Hidden);
        }
    }

    /// Makes a platform path readable, unless an entry denies it or a parent directory other than
    /// the root.
    pub(super) fn add_platform_default(&mut self, trace: &PathTrace) {
        let TraceEnd::Exists { path, .. } = &trace.end else {
            return;
        };
        let denied = |above: &Path| {
            above.parent().is_some() && self.access_of(above) == Some(PathAccess::Hidden)
        };
        if !path.ancestors().any(denied) {
            self.add_required(trace);
        }
    }

    /// Makes a path readable without which no command would start, unless an entry denies exactly
    /// this path.
    pub(super) fn add_required(&mut self, trace: &PathTrace) {
        let TraceEnd::Exists { path, kind } = &trace.end else {
            return;
        };
        if self.access_of(path).is_none() && self.access(path) == PathAccess::Hidden {
            self.layers.insert(path.clone(), (*kind, PathAccess::Read));
        }
        self.expose_links(trace);
    }

    /// Makes a writable path read-only, unless an entry names exactly this path.
    pub(super) fn protect(&mut self, trace: &PathTrace) {
        if self.named_for_write.contains(&trace.named) {
            return;
        }
        self.guard_links(trace);
        match &trace.end {
            TraceEnd::Exists { path, kind } => {
                if self.access_of(path).is_none() && self.access(path) == PathAccess::Write {
                    self.layers.insert(path.clone(), (*kind, PathAccess::Read));
                }
            }
            TraceEnd::Missing { path, first } => {
                if !self.named_for_write.contains(path) {
                    self.guarded_names.insert(first.clone());
                }
            }
            TraceEnd::Unsearchable(directory) => {
                self.cap_access(directory.clone(), PathAccess::Read)
            }
            TraceEnd::Unreachable => {}
        }
    }

    /// Makes a file, or a directory and the files directly in it, read-only regardless of the
    /// entries.
    pub(super) fn protect_always(&mut self, trace: &PathTrace) {
        self.guard_links(trace);
        match &trace.end {
            TraceEnd::Exists { path, kind } => {
                let files = self.layers.iter_mut().filter(|(inner, (kind, _))| {
                    *kind == PathKind::File && inner.parent() == Some(path.as_path())
                });
                for (_, (_, access)) in files {
                    *access = (*access).min(PathAccess::Read);
                }
                if self.access(path) == PathAccess::Write {
                    self.layers.insert(path.clone(), (*kind, PathAccess::Read));
                }
            }
            TraceEnd::Missing { first, .. } => {
                self.guarded_names.insert(first.clone());
            }
            TraceEnd::Unsearchable(directory) => {
                self.cap_access(directory.clone(), PathAccess::Read)
            }
            TraceEnd::Unreachable => {}
        }
    }

    /// Limits the access to an unsearchable directory. The path of an entry may be inside, and the
    /// command may be able to make the directory searchable.
    pub(super) fn cap_access(&mut self, directory: PathBuf, access: PathAccess) {
        match access {
            PathAccess::Write => {}
            PathAccess::Read | PathAccess::Hidden => self.ceilings.push((directory, access)),
        }
    }

    /// Returns the paths that entries allow to be read or written.
    pub(super) fn allowed_paths(&self) -> BTreeSet<PathBuf> {
        let allowed = |rule: &(PathKind, PathAccess)| rule.1 != PathAccess::Hidden;
        let layers = self.layers.iter().filter(|(_, rule)| allowed(rule));
        layers.map(|(path, _)| path.clone()).collect()
    }

    /// Returns the directories that write entries name, also behind links that grant nothing.
    /// Without those that another entry denies.
    pub(super) fn writable_roots(&self) -> BTreeSet<PathBuf> {
        let writable =
            |rule: &(PathKind, PathAccess)| *rule == (PathKind::Directory, PathAccess::Write);
        let layers = self.layers.iter().filter(|(_, rule)| writable(rule));
        let denied = |path: &PathBuf| self.access_of(path) == Some(PathAccess::Hidden);
        let behind_links = self.replaceable_roots.iter();
        layers
            .map(|(path, _)| path)
            .chain(behind_links.filter(|path| !denied(path)))
            .cloned()
            .collect()
    }

    /// Returns the access to a path. The path must not contain symbolic links.
    pub(super) fn access(&self, path: &Path) -> PathAccess {
        let nearest = path.ancestors().find_map(|above| self.access_of(above));
        nearest.unwrap_or(PathAccess::Hidden)
    }

    /// Converts the rules into a view, without redundant layers.
    pub(super) fn into_view(mut self) -> Result<FileView, PolicyError> {
        for (directory, limit) in std::mem::take(&mut self.ceilings) {
            if self.access(&directory) > limit {
                self.layers.insert(directory, (PathKind::Directory, limit));
            }
        }
        // The base of a view is never writable: a writable root is a layer.
        let base = self.access(Path::new("/")).min(PathAccess::Read);
        let mut layers = self.layers(base);
        layers.sort_by_cached_key(|layer| (layer.path.components().count(), layer.path.clone()));
        let denied = |(first, access)| (access != PathAccess::Write).then_some(first);
        let mut forbidden = std::mem::take(&mut self.guarded_names);
        forbidden.extend(
            std::mem::take(&mut self.missing)
                .into_values()
                .filter_map(denied),
        );
        forbidden.retain(|name| self.access(&name.directory) == PathAccess::Write);
        if layers.len() > MAX_LAYERS || forbidden.len() > MAX_LAYERS {
            return Err(PolicyError::TooManyLayers);
        }
        let links = match base {
            PathAccess::Hidden => self.links_outside(&layers),
            PathAccess::Read | PathAccess::Write => Vec::new(),
        };
        Ok(FileView {
            base,
            layers,
            forbidden: forbidden.into_iter().collect(),
            links,
        })
    }

    /// Returns the layers that differ from the access above them.
    fn layers(&self, base: PathAccess) -> Vec<ViewLayer> {
        let above = |path: &Path| {
            let parent = path.parent();
            parent.map_or(base, |parent| self.access(parent))
        };
        let differs = |(path, (kind, access)): (&PathBuf, &(PathKind, PathAccess))| {
            (above(path) != *access).then(|| ViewLayer {
                path: path.clone(),
                kind: *kind,
                access: *access,
            })
        };
        self.layers.iter().filter_map(differs).collect()
    }

    /// Returns the links that no layer contains.
    fn links_outside(&self, layers: &[ViewLayer]) -> Vec<(PathBuf, PathBuf)> {
        let layers: BTreeSet<&Path> = layers.iter().map(|layer| layer.path.as_path()).collect();
        let outside = |link: &Path| !link.ancestors().any(|above| layers.contains(above));
        self.links
            .iter()
            .filter(|(link, _)| outside(link))
            .map(|(link, target)| (link.clone(), target.clone()))
            .collect()
    }

    fn access_of(&self, path: &Path) -> Option<PathAccess> {
        self.layers.get(path).map(|(_, access)| *access)
    }

    fn guard_links(&mut self, trace: &PathTrace) {
        let locations = trace.links.iter().map(|link| link.location.clone());
        self.guarded_names.extend(locations);
    }

    fn expose_links(&mut self, trace: &PathTrace) {
        if let TraceEnd::Exists { .. } = trace.end {
            let links = trace.links.iter();
            let shown = links.map(|link| {
                let location = link.location.directory.join(&link.location.name);
                (location, link.target.clone())
            });
            self.links.extend(shown);
        }
    }
}

/// Returns the access that applies if two entries name the same path.
fn stronger_access(one: PathAccess, other: PathAccess) -> PathAccess {
    let strength = |access: &PathAccess| match access {
        PathAccess::Hidden => 2,
        PathAccess::Write => 1,
        PathAccess::Read => 0,
    };
    std::cmp::max_by_key(one, other, strength)
}

/// Returns the maximum access that an entry can grant. Writing below `/proc` or `/sys` changes the
/// kernel or other processes, not files.
fn max_access(path: &Path) -> PathAccess {
    if path.starts_with("/proc") || path.starts_with("/sys") {
        PathAccess::Read
    } else {
        PathAccess::Write
    }
}

/// Protected names directly below a writable directory. The same list as the stock server.
const PROTECTED_NAMES: [&str; 4] = [GIT, ".agents", ".codex", ".aws"];

/// A git directory, or a file that names it.
const GIT: &str = ".git";

/// Paths that uid 0 may write by mode alone, without any capability: sysctls, devices, and the
/// trigger that restarts the machine. Reachable only through a writable root.
const KERNEL_SETTINGS: [&str; 5] = [
    "/sys",
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
];

/// Protects metadata below every writable root.
pub(super) fn protect_metadata(rules: &mut AccessRules, tracer: &mut PathTracer<'_>) {
    for directory in rules.writable_roots() {
        for name in PROTECTED_NAMES {
            let trace = tracer.trace(&directory.join(name));
            rules.protect(&trace);
            if let (GIT, TraceEnd::Exists { path, kind }) = (name, &trace.end)
                && *kind == PathKind::File
                && let Some(git) = git_directory(tracer, path, &directory)
            {
                protect_git(rules, tracer, &git);
            }
        }
    }
}

/// Protects kernel settings below a writable root.
pub(super) fn protect_kernel(rules: &mut AccessRules, tracer: &mut PathTracer<'_>) {
    if rules.access(Path::new("/")) == PathAccess::Write {
        for path in KERNEL_SETTINGS {
            let trace = tracer.trace(Path::new(path));
            if let TraceEnd::Exists { .. } = trace.end {
                rules.protect(&trace);
            }
        }
    }
}

/// Protects the directory that a `.git` file names, and its common directory.
fn protect_git(rules: &mut AccessRules, tracer: &mut PathTracer<'_>, git: &Path) {
    let trace = tracer.trace(git);
    rules.protect(&trace);
    let TraceEnd::Exists { path: git, .. } = trace.end else {
        return;
    };
    let shared = read_line(tracer, &git.join("commondir"));
    if let Some(shared) = shared.filter(|shared| !shared.is_empty()) {
        let trace = tracer.trace(&git.join(OsStr::from_bytes(&shared)));
        rules.protect(&trace);
    }
}

/// Returns the directory that a `.git` file in `beside` names.
fn git_directory(tracer: &mut PathTracer<'_>, file: &Path, beside: &Path) -> Option<PathBuf> {
    let line = read_line(tracer, file)?;
    let target = line.strip_prefix(b"gitdir: ")?;
    (!target.is_empty()).then(|| beside.join(OsStr::from_bytes(target)))
}

/// Returns the content of a small file without its line end, as git reads it.
fn read_line(tracer: &mut PathTracer<'_>, file: &Path) -> Option<Vec<u8>> {
    let TraceEnd::Exists { path, .. } = tracer.trace(file).end else {
        return None;
    };
    let mut line = tracer.facts().read(&path, MAX_GIT_FILE_BYTES)?;
    while let Some(b'\n' | b'\r') = line.last() {
        line.pop();
    }
    (!line.contains(&0)).then_some(line)
}
