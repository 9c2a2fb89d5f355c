//! The rules of a policy once more, read as they are written: slowly, and for one path at a time.
//!
//! Tests and fuzzing hold plans against it. It may allow more than a plan, where a plan is careful;
//! never less.

use std::{
    cmp::Reverse,
    path::{Component, Path, PathBuf},
};

use exec_wire::{
    path_uri::PathUri,
    sandbox::{
        Access as EntryAccess, EntryPath, FileSystemPolicy, Permissions, Sandbox, SpecialPath,
    },
};
use globset::GlobBuilder;

use super::{Context, Purpose};
use crate::{
    facts::{Facts, Found, Tree},
    plan::{Access, Files, Forbidden, Kind, Plan, View},
};

/// What a policy says about every path of a tree.
pub(crate) struct Reference<'a> {
    tree: &'a Tree,
    /// What entries name, without links.
    entries: Vec<(PathBuf, Access)>,
    /// What write entries name, whether it is a link or not.
    written: Vec<PathBuf>,
    /// What is never more than readable, unless an entry names it or something below.
    protected: Vec<PathBuf>,
    /// What is never less than readable, unless an entry names it or something below.
    readable: Vec<PathBuf>,
}

impl<'a> Reference<'a> {
    /// Reads a policy; `None` if it does not restrict files.
    pub(crate) fn of(sandbox: &Sandbox, context: &Context, tree: &'a Tree) -> Option<Self> {
        let Permissions::Managed {
            file_system:
                FileSystemPolicy::Restricted {
                    entries,
                    glob_scan_max_depth,
                },
            ..
        } = &sandbox.permissions
        else {
            return None;
        };
        let (roots, cwd) = match &sandbox.policy_context {
            Some(inner) => (&inner.workspace_roots, inner.cwd.as_ref()),
            None => (&sandbox.workspace_roots, None),
        };
        let roots: Vec<_> = roots
            .iter()
            .filter_map(|root| root.to_native().ok())
            .collect();
        let cwd = cwd.or(sandbox.cwd.as_ref()).map(PathUri::to_native);
        let cwd = cwd.and_then(Result::ok).unwrap_or(context.cwd.clone());
        let mut reference = Self {
            tree,
            entries: Vec::new(),
            written: Vec::new(),
            protected: Vec::new(),
            readable: Vec::new(),
        };
        let mut minimal = context.purpose == Purpose::Files;
        for entry in entries {
            let access = match entry.access {
                EntryAccess::Deny => Access::Hidden,
                EntryAccess::Read => Access::Read,
                EntryAccess::Write => Access::Write,
            };
            match &entry.path {
                EntryPath::Path { path } => {
                    let path = path.to_native().unwrap_or_default();
                    reference.entry(&path, access);
                }
                EntryPath::GlobPattern { pattern } => {
                    let depth = glob_scan_max_depth.map_or(usize::MAX, usize::from);
                    reference.glob(pattern, &cwd, &roots, depth);
                }
                EntryPath::Special { value } => match value {
                    SpecialPath::Root => reference.entry(Path::new("/"), access),
                    SpecialPath::Minimal => minimal |= access != Access::Hidden,
                    SpecialPath::ProjectRoots { subpath } => {
                        for root in &roots {
                            let below = subpath.clone().unwrap_or_default();
                            reference.entry(&root.join(below), access);
                        }
                    }
                    SpecialPath::Tmpdir => {
                        if let Some(path) = context.tmpdir.as_ref().map(Path::new)
                            && path.is_absolute()
                        {
                            reference.entry(path, access);
                        }
                    }
                    SpecialPath::SlashTmp => {
                        let there = |path: PathBuf| tree.look(&path) != Found::Missing;
                        if real(tree, Path::new("/tmp")).is_some_and(there) {
                            reference.entry(Path::new("/tmp"), access);
                        }
                    }
                    SpecialPath::Unknown { .. } => {}
                },
            }
        }
        let needed = context.always_readable.iter().map(PathBuf::as_path);
        let system = "/bin /sbin /usr /etc /lib /lib64 /nix/store /run/current-system/sw";
        let system = system.split(' ').map(Path::new).filter(|_| minimal);
        for path in needed.chain(system) {
            reference.readable.extend(real(tree, path));
        }
        reference.protect();
        Some(reference)
    }

    /// Tells what may be done with a path without links, which need not exist.
    pub(crate) fn access(&self, path: &Path) -> Access {
        let above = self
            .entries
            .iter()
            .filter(|(above, _)| path.starts_with(above));
        let best = above.min_by_key(|(above, access)| {
            let order = [Access::Hidden, Access::Write, Access::Read];
            let rank = order.iter().position(|one| one == access);
            (Reverse(above.components().count()), rank)
        });
        let (names, mut access) = best.map_or((0, Access::Hidden), |(above, access)| {
            (above.components().count(), *access)
        });
        let nearer =
            |other: &&PathBuf| path.starts_with(other) && other.components().count() > names;
        if self.readable.iter().any(|other| nearer(&other)) {
            access = access.max(Access::Read);
        }
        if self.protected.iter().any(|other| nearer(&other)) {
            access = access.min(Access::Read);
        }
        access
    }

    fn entry(&mut self, path: &Path, access: Access) {
        let Some(target) = real(self.tree, path) else {
            return;
        };
        if access == Access::Write {
            let parent = path.parent().and_then(|parent| real(self.tree, parent));
            if let (Some(parent), Some(name)) = (parent, path.file_name()) {
                self.written.push(parent.join(name));
            }
        }
        let is_kernels = ["/proc", "/sys"]
            .iter()
            .any(|kernel| target.starts_with(kernel));
        let most = if is_kernels {
            Access::Read
        } else {
            Access::Write
        };
        self.entries.push((target, access.min(most)));
    }

    /// Denies what a glob matches. One with names that need thought is left out.
    fn glob(&mut self, pattern: &str, cwd: &Path, roots: &[PathBuf], depth: usize) {
        let (bases, pattern) = match pattern.strip_prefix("codex-project-roots://") {
            Some(below) => (roots, below),
            None if pattern.starts_with('/') => {
                (&[PathBuf::from("/")][..], pattern.trim_start_matches('/'))
            }
            None => (&[cwd.to_owned()][..], pattern),
        };
        let names: Vec<&str> = pattern.split('/').collect();
        let Ok(glob) = GlobBuilder::new(pattern).literal_separator(true).build() else {
            return;
        };
        if names.iter().any(|name| matches!(*name, "" | "." | "..")) {
            return;
        }
        let glob = glob.compile_matcher();
        let fixed = |name: &&&str| !name.contains(['*', '?', '[', '{', '}', '\\']);
        let fixed = names.iter().take_while(fixed).count();
        for base in bases.iter().filter_map(|base| real(self.tree, base)) {
            for path in self.tree.paths() {
                let Ok(below) = path.strip_prefix(&base) else {
                    continue;
                };
                let deep = below.components().count();
                if deep == 0 || deep > fixed.saturating_add(depth) || !glob.is_match(below) {
                    continue;
                }
                if !is_sealed(self.tree, path) {
                    self.entries
                        .extend(real(self.tree, path).map(|path| (path, Access::Hidden)));
                }
            }
        }
    }

    fn protect(&mut self) {
        let named = |path: &PathBuf| self.entries.iter().any(|(entry, _)| entry == path);
        let mut protected = Vec::new();
        for (directory, access) in &self.entries {
            let denied = self.entries.contains(&(directory.clone(), Access::Hidden));
            // Nobody can look for metadata in a directory that cannot be searched.
            let there = matches!(self.tree.look(directory), Found::Directory)
                && !is_sealed(self.tree, directory);
            if *access != Access::Write || denied || !there {
                continue;
            }
            for name in [".git", ".agents", ".codex", ".aws"] {
                let path = directory.join(name);
                if !self.written.contains(&path) {
                    protected.extend(real(self.tree, &path));
                }
                let file = real(self.tree, &path).and_then(|file| self.tree.read(&file, 4096));
                if let Some(text) = file.and_then(|file| String::from_utf8(file).ok())
                    && let Some(git) = text.trim_end().strip_prefix("gitdir: ")
                    && name == ".git"
                {
                    protected.extend(real(self.tree, &directory.join(git)));
                }
            }
            if directory.parent().is_none() {
                let kernel = [
                    "/sys",
                    "/proc/sys",
                    "/proc/sysrq-trigger",
                    "/proc/irq",
                    "/proc/bus",
                ];
                protected.extend(kernel.map(PathBuf::from));
            }
        }
        protected.retain(|path| !named(path));
        self.protected = protected;
    }
}

/// Returns a path without links, as far as it exists.
fn real(tree: &Tree, path: &Path) -> Option<PathBuf> {
    real_within(tree, path, 200)
}

fn real_within(tree: &Tree, path: &Path, steps: usize) -> Option<PathBuf> {
    let steps = steps.checked_sub(1)?;
    let mut components = path.components();
    let last = components.next_back();
    let parent = components.as_path();
    match last {
        None | Some(Component::RootDir | Component::CurDir | Component::Prefix(_)) => {
            Some(PathBuf::from("/"))
        }
        Some(Component::ParentDir) => {
            let mut path = real_within(tree, parent, steps)?;
            path.pop();
            Some(path)
        }
        Some(Component::Normal(name)) => {
            let parent = real_within(tree, parent, steps)?;
            match tree.look(&parent.join(name)) {
                Found::Link(target) => real_within(tree, &parent.join(target), steps),
                Found::Directory | Found::File | Found::Missing | Found::Unknown => {
                    Some(parent.join(name))
                }
            }
        }
    }
}

fn is_sealed(tree: &Tree, path: &Path) -> bool {
    path.ancestors()
        .any(|above| tree.look(above) == Found::Unknown)
}

/// Checks everything that holds for every plan.
///
/// # Panics
/// When a plan allows what its policy does not, or is not made as a plan is made.
pub(crate) fn check(plan: &Plan, sandbox: &Sandbox, context: &Context, tree: &Tree) {
    let Files::View(view) = &plan.files else {
        return;
    };
    check_shape(view, tree);
    let Some(reference) = Reference::of(sandbox, context, tree) else {
        panic!("a policy without restrictions has a view");
    };
    for path in tree.paths().chain([Path::new("/")]) {
        match tree.look(path) {
            Found::Directory | Found::File => {
                let (found, most) = (view.access(path), reference.access(path));
                assert!(
                    found <= most,
                    "{path:?} is {found:?} and not {most:?}: {plan:?}"
                );
            }
            Found::Link(_) | Found::Missing | Found::Unknown => {}
        }
        if tree.look(path) == Found::Directory && view.access(path) == Access::Write {
            check_new(view, &reference, path);
        }
    }
}

/// Checks that nothing comes to be in a writable directory that must not be written.
fn check_new(view: &View, reference: &Reference<'_>, directory: &Path) {
    for name in ["a", "b", ".env", ".git", ".codex", "data"] {
        let forbidden = Forbidden {
            directory: directory.to_owned(),
            name: name.into(),
        };
        if reference.tree.look(&directory.join(name)) != Found::Missing
            || view.forbidden.contains(&forbidden)
        {
            continue;
        }
        for below in ["", "a", "b", "data", "a/b"] {
            let path = directory.join(name).join(below);
            let found = reference.access(&path);
            assert_eq!(found, Access::Write, "{path:?} can be made: {view:?}");
        }
    }
}

fn check_shape(view: &View, tree: &Tree) {
    assert!(view.base != Access::Write);
    let key = |path: &Path| (path.components().count(), path.to_owned());
    assert!(
        view.layers
            .is_sorted_by(|one, other| key(&one.path) < key(&other.path))
    );
    for layer in &view.layers {
        let kind = match tree.look(&layer.path) {
            Found::Directory => Kind::Directory,
            Found::File => Kind::File,
            found @ (Found::Missing | Found::Unknown | Found::Link(_)) => {
                panic!("{layer:?} is {found:?}")
            }
        };
        assert_eq!(layer.kind, kind, "{layer:?}");
        assert_eq!(real(tree, &layer.path).as_ref(), Some(&layer.path));
        let above = layer
            .path
            .parent()
            .map_or(view.base, |parent| view.access(parent));
        assert_ne!(layer.access, above, "{layer:?} says what holds anyway");
    }
    assert!(view.forbidden.is_sorted_by(|one, other| one < other));
    for name in &view.forbidden {
        assert_eq!(tree.look(&name.directory), Found::Directory, "{name:?}");
        assert_eq!(view.access(&name.directory), Access::Write, "{name:?}");
        let found = tree.look(&name.directory.join(&name.name));
        assert!(
            matches!(found, Found::Missing | Found::Link(_)),
            "{name:?} is {found:?}"
        );
    }
    assert!(view.links.is_sorted_by(|one, other| one.0 < other.0));
    assert!(view.base == Access::Hidden || view.links.is_empty());
    for (link, target) in &view.links {
        assert_eq!(tree.look(link), Found::Link(target.clone()));
        assert!(
            !view
                .layers
                .iter()
                .any(|layer| link.starts_with(&layer.path))
        );
    }
}
