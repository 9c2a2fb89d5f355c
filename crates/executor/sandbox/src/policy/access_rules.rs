//! What holds for which path, while a policy is put together; in the end, a view.
//!
//! What stays unwritable below a writable directory: settings of tools that run outside of the
//! sandbox, and would run what a command wrote into them; and the kernel's own settings.

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

/// What holds for paths without links. The one with most names that is above a path counts.
#[derive(Debug, Default)]
pub(super) struct AccessRules {
    layers: BTreeMap<PathBuf, (PathKind, PathAccess)>,
    /// What entries say about paths that do not exist, and the first name that does not.
    missing: BTreeMap<PathBuf, (ForbiddenName, PathAccess)>,
    /// Names that must not come to be, where they could.
    guarded_names: BTreeSet<ForbiddenName>,
    /// What entries name to be written, whether it is a link or not.
    named_for_write: BTreeSet<PathBuf>,
    /// Directories that cannot be searched, and what may be done with them at most.
    ceilings: Vec<(PathBuf, PathAccess)>,
    /// Links on the way to what may be used.
    links: BTreeMap<PathBuf, PathBuf>,
}

impl AccessRules {
    /// Adds what an entry says. Of two for one path, denying wins over writing over reading.
    pub(super) fn add(&mut self, trace: PathTrace, access: PathAccess) {
        match access {
            PathAccess::Write => {
                self.named_for_write.insert(trace.named.clone());
            }
            // No mount covers a link. What it leads to is covered; and nothing takes its place.
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

    /// Adds an entry for writing that allows nothing; what it names is a writable root, though, if it
    /// can be written anyway.
    pub(super) fn add_replaceable_write(&mut self, trace: PathTrace) {
        self.named_for_write.insert(trace.named);
        match trace.end {
            TraceEnd::Exists { path, kind } => {
                if self.access(&path) == PathAccess::Write {
                    let access = max_access(&path);
                    self.layers.insert(path, (kind, access));
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

    /// Adds where a glob starts, whose matches are denied.
    pub(super) fn add_glob_base(&mut self, trace: &PathTrace) {
        self.guard_links(trace);
        if let TraceEnd::Unsearchable(directory) = &trace.end {
            self.cap_access(directory.clone(), PathAccess::Hidden);
        }
    }

    /// Makes something readable that a platform needs, unless an entry denies it: by its own name, or
    /// by that of a directory above other than the root.
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

    /// Makes something readable that nothing would start without, unless an entry denies it by name.
    pub(super) fn add_required(&mut self, trace: &PathTrace) {
        let TraceEnd::Exists { path, kind } = &trace.end else {
            return;
        };
        if self.access_of(path).is_none() && self.access(path) == PathAccess::Hidden {
            self.layers.insert(path.clone(), (*kind, PathAccess::Read));
        }
        self.expose_links(trace);
    }

    /// Makes something unwritable that would be writable, unless an entry speaks of just that.
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

    /// Makes a file, or a directory and the files directly in it, unwritable whatever entries say.
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

    /// Keeps a directory that cannot be searched from being used for more than this: what an entry
    /// names may be in it, and the command may be able to open it for itself.
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

    /// Returns the directories that entries make writable.
    pub(super) fn writable_directories(&self) -> Vec<PathBuf> {
        let writable =
            |rule: &(PathKind, PathAccess)| *rule == (PathKind::Directory, PathAccess::Write);
        self.layers
            .iter()
            .filter(|(_, rule)| writable(rule))
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// Tells what may be done with a path without links.
    pub(super) fn access(&self, path: &Path) -> PathAccess {
        let nearest = path.ancestors().find_map(|above| self.access_of(above));
        nearest.unwrap_or(PathAccess::Hidden)
    }

    /// Makes the view, without anything that says what holds anyway.
    pub(super) fn into_view(mut self) -> Result<FileView, PolicyError> {
        for (directory, most) in std::mem::take(&mut self.ceilings) {
            if self.access(&directory) > most {
                self.layers.insert(directory, (PathKind::Directory, most));
            }
        }
        // Nothing is mounted over a base that can be written: the root is a layer then.
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

    /// Returns the layers that differ from what is above them.
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

    /// Returns the links that no layer shows.
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
        let places = trace.links.iter().map(|link| link.place.clone());
        self.guarded_names.extend(places);
    }

    fn expose_links(&mut self, trace: &PathTrace) {
        if let TraceEnd::Exists { .. } = trace.end {
            let links = trace.links.iter();
            let shown = links.map(|link| {
                let place = link.place.directory.join(&link.place.name);
                (place, link.target.clone())
            });
            self.links.extend(shown);
        }
    }
}

/// Returns which of two entries for one path counts.
fn stronger_access(one: PathAccess, other: PathAccess) -> PathAccess {
    let strength = |access: &PathAccess| match access {
        PathAccess::Hidden => 2,
        PathAccess::Write => 1,
        PathAccess::Read => 0,
    };
    std::cmp::max_by_key(one, other, strength)
}

/// Returns what an entry can allow at most. Whoever writes below `/proc` or `/sys` changes the kernel,
/// or other processes, and not files.
fn max_access(path: &Path) -> PathAccess {
    if path.starts_with("/proc") || path.starts_with("/sys") {
        PathAccess::Read
    } else {
        PathAccess::Write
    }
}

/// Names directly below a writable directory: as the stock server.
const PROTECTED_NAMES: [&str; 4] = [GIT, ".agents", ".codex", ".aws"];

/// Git's directory, or a file that says where that is.
const GIT: &str = ".git";

/// What the kernel lets uid 0 write without any capability, by the modes alone: sysctls and devices,
/// and what restarts the machine. Only a writable root reaches these.
const KERNEL_SETTINGS: [&str; 5] = [
    "/sys",
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
];

/// Protects metadata below every directory that entries make writable.
pub(super) fn protect_metadata(rules: &mut AccessRules, tracer: &mut PathTracer<'_>) {
    for directory in rules.writable_directories() {
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

/// Protects the kernel's settings below a writable root.
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

/// Protects a directory that a `.git` file points to, and the one that it shares with others.
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

/// Returns the directory that a `.git` file in `beside` points to.
fn git_directory(tracer: &mut PathTracer<'_>, file: &Path, beside: &Path) -> Option<PathBuf> {
    let line = read_line(tracer, file)?;
    let target = line.strip_prefix(b"gitdir: ")?;
    (!target.is_empty()).then(|| beside.join(OsStr::from_bytes(target)))
}

/// Returns a small file without the end of its line, as git reads it.
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
