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
    path_trace::{End, Paths, Trace},
};
use crate::plan::{Access, Forbidden, Kind, Layer, View};

/// What holds for paths without links. The one with most names that is above a path counts.
#[derive(Debug, Default)]
pub(super) struct Rules {
    layers: BTreeMap<PathBuf, (Kind, Access)>,
    /// What entries say about paths that do not exist, and the first name that does not.
    missing: BTreeMap<PathBuf, (Forbidden, Access)>,
    /// Names that must not come to be, where they could.
    guarded: BTreeSet<Forbidden>,
    /// What entries name to be written, whether it is a link or not.
    written: BTreeSet<PathBuf>,
    /// Directories that cannot be searched, and what may be done with them at most.
    ceilings: Vec<(PathBuf, Access)>,
    /// Links on the way to what may be used.
    links: BTreeMap<PathBuf, PathBuf>,
}

impl Rules {
    /// Adds what an entry says. Of two for one path, denying wins over writing over reading.
    pub(super) fn add(&mut self, trace: Trace, access: Access) {
        match access {
            Access::Write => {
                self.written.insert(trace.named.clone());
            }
            // No mount covers a link. What it leads to is covered; and nothing takes its place.
            Access::Read | Access::Hidden => self.guard_links(&trace),
        }
        if access != Access::Hidden {
            self.show_links(&trace);
        }
        match trace.end {
            End::There { path, kind } => {
                let access = access.min(most(&path));
                let (_, held) = self.layers.entry(path).or_insert((kind, access));
                *held = stronger(*held, access);
            }
            End::Missing { path, first } => {
                let access = access.min(most(&path));
                let (_, held) = self.missing.entry(path).or_insert((first, access));
                *held = stronger(*held, access);
            }
            End::Sealed(directory) => {
                let access = access.min(most(&directory));
                self.seal(directory, access);
            }
            End::Nowhere => {}
        }
    }

    /// Adds an entry for writing that allows nothing; what it names is a writable root, though, if it
    /// can be written anyway.
    pub(super) fn add_doubtful(&mut self, trace: Trace) {
        self.written.insert(trace.named);
        match trace.end {
            End::There { path, kind } => {
                if self.access(&path) == Access::Write {
                    let access = most(&path);
                    self.layers.insert(path, (kind, access));
                }
            }
            End::Missing { path, first } => {
                if most(&path) != Access::Write {
                    self.guarded.insert(first);
                }
            }
            End::Sealed(directory) => {
                let access = most(&directory);
                self.seal(directory, access);
            }
            End::Nowhere => {}
        }
    }

    /// Adds where a glob starts, whose matches are denied.
    pub(super) fn add_base(&mut self, trace: &Trace) {
        self.guard_links(trace);
        if let End::Sealed(directory) = &trace.end {
            self.seal(directory.clone(), Access::Hidden);
        }
    }

    /// Makes something readable that a platform needs, unless an entry denies it: by its own name, or
    /// by that of a directory above other than the root.
    pub(super) fn add_default(&mut self, trace: &Trace) {
        let End::There { path, .. } = &trace.end else {
            return;
        };
        let denied = |above: &Path| {
            above.parent().is_some() && self.access_of(above) == Some(Access::Hidden)
        };
        if !path.ancestors().any(denied) {
            self.add_needed(trace);
        }
    }

    /// Makes something readable that nothing would start without, unless an entry denies it by name.
    pub(super) fn add_needed(&mut self, trace: &Trace) {
        let End::There { path, kind } = &trace.end else {
            return;
        };
        if self.access_of(path).is_none() && self.access(path) == Access::Hidden {
            self.layers.insert(path.clone(), (*kind, Access::Read));
        }
        self.show_links(trace);
    }

    /// Makes something unwritable that would be writable, unless an entry speaks of just that.
    pub(super) fn protect(&mut self, trace: &Trace) {
        if self.written.contains(&trace.named) {
            return;
        }
        self.guard_links(trace);
        match &trace.end {
            End::There { path, kind } => {
                if self.access_of(path).is_none() && self.access(path) == Access::Write {
                    self.layers.insert(path.clone(), (*kind, Access::Read));
                }
            }
            End::Missing { path, first } => {
                if !self.written.contains(path) {
                    self.guarded.insert(first.clone());
                }
            }
            End::Sealed(directory) => self.seal(directory.clone(), Access::Read),
            End::Nowhere => {}
        }
    }

    /// Makes a file, or a directory and the files directly in it, unwritable whatever entries say.
    pub(super) fn close(&mut self, trace: &Trace) {
        self.guard_links(trace);
        match &trace.end {
            End::There { path, kind } => {
                let files = self.layers.iter_mut().filter(|(inner, (kind, _))| {
                    *kind == Kind::File && inner.parent() == Some(path.as_path())
                });
                for (_, (_, access)) in files {
                    *access = (*access).min(Access::Read);
                }
                if self.access(path) == Access::Write {
                    self.layers.insert(path.clone(), (*kind, Access::Read));
                }
            }
            End::Missing { first, .. } => {
                self.guarded.insert(first.clone());
            }
            End::Sealed(directory) => self.seal(directory.clone(), Access::Read),
            End::Nowhere => {}
        }
    }

    /// Keeps a directory that cannot be searched from being used for more than this: what an entry
    /// names may be in it, and the command may be able to open it for itself.
    pub(super) fn seal(&mut self, directory: PathBuf, access: Access) {
        match access {
            Access::Write => {}
            Access::Read | Access::Hidden => self.ceilings.push((directory, access)),
        }
    }

    /// Returns the paths that entries allow to be read or written.
    pub(super) fn allowed_paths(&self) -> BTreeSet<PathBuf> {
        let allowed = |rule: &(Kind, Access)| rule.1 != Access::Hidden;
        let layers = self.layers.iter().filter(|(_, rule)| allowed(rule));
        layers.map(|(path, _)| path.clone()).collect()
    }

    /// Returns the directories that entries make writable.
    pub(super) fn writable_directories(&self) -> Vec<PathBuf> {
        let writable = |rule: &(Kind, Access)| *rule == (Kind::Directory, Access::Write);
        self.layers
            .iter()
            .filter(|(_, rule)| writable(rule))
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// Tells what may be done with a path without links.
    pub(super) fn access(&self, path: &Path) -> Access {
        let nearest = path.ancestors().find_map(|above| self.access_of(above));
        nearest.unwrap_or(Access::Hidden)
    }

    /// Makes the view, without anything that says what holds anyway.
    pub(super) fn into_view(mut self) -> Result<View, PolicyError> {
        for (directory, most) in std::mem::take(&mut self.ceilings) {
            if self.access(&directory) > most {
                self.layers.insert(directory, (Kind::Directory, most));
            }
        }
        // Nothing is mounted over a base that can be written: the root is a layer then.
        let base = self.access(Path::new("/")).min(Access::Read);
        let mut layers = self.layers(base);
        layers.sort_by_cached_key(|layer| (layer.path.components().count(), layer.path.clone()));
        let denied = |(first, access)| (access != Access::Write).then_some(first);
        let mut forbidden = std::mem::take(&mut self.guarded);
        forbidden.extend(
            std::mem::take(&mut self.missing)
                .into_values()
                .filter_map(denied),
        );
        forbidden.retain(|name| self.access(&name.directory) == Access::Write);
        if layers.len() > MAX_LAYERS || forbidden.len() > MAX_LAYERS {
            return Err(PolicyError::TooManyLayers);
        }
        let links = match base {
            Access::Hidden => self.links_outside(&layers),
            Access::Read | Access::Write => Vec::new(),
        };
        Ok(View {
            base,
            layers,
            forbidden: forbidden.into_iter().collect(),
            links,
        })
    }

    /// Returns the layers that differ from what is above them.
    fn layers(&self, base: Access) -> Vec<Layer> {
        let above = |path: &Path| {
            let parent = path.parent();
            parent.map_or(base, |parent| self.access(parent))
        };
        let differs = |(path, (kind, access)): (&PathBuf, &(Kind, Access))| {
            (above(path) != *access).then(|| Layer {
                path: path.clone(),
                kind: *kind,
                access: *access,
            })
        };
        self.layers.iter().filter_map(differs).collect()
    }

    /// Returns the links that no layer shows.
    fn links_outside(&self, layers: &[Layer]) -> Vec<(PathBuf, PathBuf)> {
        let layers: BTreeSet<&Path> = layers.iter().map(|layer| layer.path.as_path()).collect();
        let outside = |link: &Path| !link.ancestors().any(|above| layers.contains(above));
        self.links
            .iter()
            .filter(|(link, _)| outside(link))
            .map(|(link, target)| (link.clone(), target.clone()))
            .collect()
    }

    fn access_of(&self, path: &Path) -> Option<Access> {
        self.layers.get(path).map(|(_, access)| *access)
    }

    fn guard_links(&mut self, trace: &Trace) {
        let places = trace.links.iter().map(|link| link.place.clone());
        self.guarded.extend(places);
    }

    fn show_links(&mut self, trace: &Trace) {
        if let End::There { .. } = trace.end {
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
fn stronger(one: Access, other: Access) -> Access {
    let strength = |access: &Access| match access {
        Access::Hidden => 2,
        Access::Write => 1,
        Access::Read => 0,
    };
    std::cmp::max_by_key(one, other, strength)
}

/// Returns what an entry can allow at most. Whoever writes below `/proc` or `/sys` changes the kernel,
/// or other processes, and not files.
fn most(path: &Path) -> Access {
    if path.starts_with("/proc") || path.starts_with("/sys") {
        Access::Read
    } else {
        Access::Write
    }
}

/// Names directly below a writable directory: as the stock server.
const METADATA: [&str; 4] = [GIT, ".agents", ".codex", ".aws"];

/// Git's directory, or a file that says where that is.
const GIT: &str = ".git";

/// What the kernel lets uid 0 write without any capability, by the modes alone: sysctls and devices,
/// and what restarts the machine. Only a writable root reaches these.
const KERNEL: [&str; 5] = [
    "/sys",
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
];

/// Protects metadata below every directory that entries make writable.
pub(super) fn protect_metadata(rules: &mut Rules, paths: &mut Paths<'_>) {
    for directory in rules.writable_directories() {
        for name in METADATA {
            let trace = paths.trace(&directory.join(name));
            rules.protect(&trace);
            if let (GIT, End::There { path, kind }) = (name, &trace.end)
                && *kind == Kind::File
                && let Some(git) = git_directory(paths, path, &directory)
            {
                protect_git(rules, paths, &git);
            }
        }
    }
}

/// Protects the kernel's settings below a writable root.
pub(super) fn protect_kernel(rules: &mut Rules, paths: &mut Paths<'_>) {
    if rules.access(Path::new("/")) == Access::Write {
        for path in KERNEL {
            let trace = paths.trace(Path::new(path));
            if let End::There { .. } = trace.end {
                rules.protect(&trace);
            }
        }
    }
}

/// Protects a directory that a `.git` file points to, and the one that it shares with others.
fn protect_git(rules: &mut Rules, paths: &mut Paths<'_>, git: &Path) {
    let trace = paths.trace(git);
    rules.protect(&trace);
    let End::There { path: git, .. } = trace.end else {
        return;
    };
    let shared = read_line(paths, &git.join("commondir"));
    if let Some(shared) = shared.filter(|shared| !shared.is_empty()) {
        let trace = paths.trace(&git.join(OsStr::from_bytes(&shared)));
        rules.protect(&trace);
    }
}

/// Returns the directory that a `.git` file in `beside` points to.
fn git_directory(paths: &mut Paths<'_>, file: &Path, beside: &Path) -> Option<PathBuf> {
    let line = read_line(paths, file)?;
    let target = line.strip_prefix(b"gitdir: ")?;
    (!target.is_empty()).then(|| beside.join(OsStr::from_bytes(target)))
}

/// Returns a small file without the end of its line, as git reads it.
fn read_line(paths: &mut Paths<'_>, file: &Path) -> Option<Vec<u8>> {
    let End::There { path, .. } = paths.trace(file).end else {
        return None;
    };
    let mut line = paths.facts().read(&path, MAX_GIT_FILE_BYTES)?;
    while let Some(b'\n' | b'\r') = line.last() {
        line.pop();
    }
    (!line.contains(&0)).then_some(line)
}
