//! Reference model of policies: a direct, slow implementation of the rules, one path at a time.
//!
//! Tests and fuzzing compare plans with it. The model may allow more than a plan, which is
//! conservative, but never less.

use std::{
    cmp::Reverse,
    path::{Component, Path, PathBuf},
};

use exec_wire::{
    path_uri::PathUri,
    sandbox::{
        EntryAccess, EntryPath, FileSystemPolicy, SandboxPermissions, SandboxPolicy, SpecialPath,
    },
};
use globset::GlobBuilder;

use super::{PolicyPurpose, ResolveContext};
use crate::{
    facts::{FileFacts, MemoryTree, PathState},
    plan::{FileAccess, FileView, ForbiddenName, PathAccess, PathKind, SandboxPlan},
};

/// Access to every path of a tree under a policy.
pub(crate) struct ReferenceModel<'a> {
    tree: &'a MemoryTree,
    /// Entries, with links resolved.
    entries: Vec<(PathBuf, PathAccess)>,
    /// Paths that write entries name, not following a final link.
    named_for_write: Vec<PathBuf>,
    /// Paths that are at most readable, unless an entry names them or a path below.
    protected: Vec<PathBuf>,
    /// Paths that are at least readable, unless an entry names them or a path below.
    required: Vec<PathBuf>,
}

impl<'a> ReferenceModel<'a> {
    /// Reads a policy. `None` if it does not restrict files.
    pub(crate) fn of(
        sandbox: &SandboxPolicy,
        context: &ResolveContext,
        tree: &'a MemoryTree,
    ) -> Option<Self> {
        let SandboxPermissions::Managed {
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
            named_for_write: Vec::new(),
            protected: Vec::new(),
            required: Vec::new(),
        };
        let mut minimal = context.purpose == PolicyPurpose::Files;
        for entry in entries {
            let access = match entry.access {
                EntryAccess::Deny => PathAccess::Hidden,
                EntryAccess::Read => PathAccess::Read,
                EntryAccess::Write => PathAccess::Write,
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
                    SpecialPath::Minimal => minimal |= access != PathAccess::Hidden,
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
                        let exists = |path: PathBuf| tree.lookup(&path) != PathState::Missing;
                        if resolve_links(tree, Path::new("/tmp")).is_some_and(exists) {
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
            reference.required.extend(resolve_links(tree, path));
        }
        reference.protect();
        Some(reference)
    }

    /// Returns the access to a path, which contains no links and need not exist.
    pub(crate) fn access(&self, path: &Path) -> PathAccess {
        let above = self
            .entries
            .iter()
            .filter(|(above, _)| path.starts_with(above));
        let best = above.min_by_key(|(above, access)| {
            let order = [PathAccess::Hidden, PathAccess::Write, PathAccess::Read];
            let rank = order.iter().position(|one| one == access);
            (Reverse(above.components().count()), rank)
        });
        let (names, mut access) = best.map_or((0, PathAccess::Hidden), |(above, access)| {
            (above.components().count(), *access)
        });
        let nearer =
            |other: &&PathBuf| path.starts_with(other) && other.components().count() > names;
        if self.required.iter().any(|other| nearer(&other)) {
            access = access.max(PathAccess::Read);
        }
        if self.protected.iter().any(|other| nearer(&other)) {
            access = access.min(PathAccess::Read);
        }
        access
    }

    fn entry(&mut self, path: &Path, access: PathAccess) {
        let Some(target) = resolve_links(self.tree, path) else {
            return;
        };
        if access == PathAccess::Write {
            let parent = path
                .parent()
                .and_then(|parent| resolve_links(self.tree, parent));
            if let (Some(parent), Some(name)) = (parent, path.file_name()) {
                self.named_for_write.push(parent.join(name));
            }
        }
        let is_kernels = ["/proc", "/sys"]
            .iter()
            .any(|kernel| target.starts_with(kernel));
        let allowed = if is_kernels {
            PathAccess::Read
        } else {
            PathAccess::Write
        };
        self.entries.push((target, access.min(allowed)));
    }

    /// Denies the matches of a glob. Globs with empty components, `.` or `..` are ignored.
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
        for base in bases
            .iter()
            .filter_map(|base| resolve_links(self.tree, base))
        {
            for path in self.tree.paths() {
                let Ok(below) = path.strip_prefix(&base) else {
                    continue;
                };
                let deep = below.components().count();
                if deep == 0 || deep > fixed.saturating_add(depth) || !glob.is_match(below) {
                    continue;
                }
                if !is_unsearchable(self.tree, path) {
                    self.entries.extend(
                        resolve_links(self.tree, path).map(|path| (path, PathAccess::Hidden)),
                    );
                }
            }
        }
    }

    fn protect(&mut self) {
        let named = |path: &PathBuf| self.entries.iter().any(|(entry, _)| entry == path);
        let mut protected = Vec::new();
        for (directory, access) in &self.entries {
            let denied = self
                .entries
                .contains(&(directory.clone(), PathAccess::Hidden));
            // Metadata in an unsearchable directory cannot be found.
            let exists = matches!(self.tree.lookup(directory), PathState::Directory)
                && !is_unsearchable(self.tree, directory);
            if *access != PathAccess::Write || denied || !exists {
                continue;
            }
            for name in [".git", ".agents", ".codex", ".aws"] {
                let path = directory.join(name);
                if !self.named_for_write.contains(&path) {
                    protected.extend(resolve_links(self.tree, &path));
                }
                let file =
                    resolve_links(self.tree, &path).and_then(|file| self.tree.read(&file, 4096));
                if let Some(text) = file.and_then(|file| String::from_utf8(file).ok())
                    && let Some(git) = text.trim_end().strip_prefix("gitdir: ")
                    && name == ".git"
                {
                    protected.extend(resolve_links(self.tree, &directory.join(git)));
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

/// Resolves the links of a path, as far as it exists and can be searched.
fn resolve_links(tree: &MemoryTree, path: &Path) -> Option<PathBuf> {
    resolve_links_within(tree, path, 200)
}

fn resolve_links_within(tree: &MemoryTree, path: &Path, steps: usize) -> Option<PathBuf> {
    let steps = steps.checked_sub(1)?;
    let mut components = path.components();
    let last = components.next_back();
    let parent = components.as_path();
    match last {
        None | Some(Component::RootDir | Component::CurDir | Component::Prefix(_)) => {
            Some(PathBuf::from("/"))
        }
        Some(Component::ParentDir) => {
            let mut path = resolve_links_within(tree, parent, steps)?;
            path.pop();
            Some(path)
        }
        Some(Component::Normal(name)) => {
            let parent = resolve_links_within(tree, parent, steps)?;
            match tree.lookup(&parent.join(name)) {
                PathState::Link(target) if !is_unsearchable(tree, &parent) => {
                    resolve_links_within(tree, &parent.join(target), steps)
                }
                PathState::Link(_)
                | PathState::Directory
                | PathState::File
                | PathState::Missing
                | PathState::Unknown => Some(parent.join(name)),
            }
        }
    }
}

fn is_unsearchable(tree: &MemoryTree, path: &Path) -> bool {
    path.ancestors()
        .any(|above| tree.lookup(above) == PathState::Unknown)
}

/// Checks all invariants of a plan.
///
/// # Panics
/// When a plan allows more than its policy, or is malformed.
pub(crate) fn check(
    plan: &SandboxPlan,
    sandbox: &SandboxPolicy,
    context: &ResolveContext,
    tree: &MemoryTree,
) {
    let FileAccess::View(view) = &plan.files else {
        return;
    };
    check_shape(view, tree);
    let Some(reference) = ReferenceModel::of(sandbox, context, tree) else {
        panic!("unrestricted policy must not have a view");
    };
    for path in tree.paths().chain([Path::new("/")]) {
        match tree.lookup(path) {
            PathState::Directory | PathState::File => {
                let (actual, allowed) = (view.access(path), reference.access(path));
                assert!(
                    actual <= allowed,
                    "{path:?} is {actual:?}, allowed is {allowed:?}: {plan:?}"
                );
            }
            PathState::Link(_) | PathState::Missing | PathState::Unknown => {}
        }
        if tree.lookup(path) == PathState::Directory && view.access(path) == PathAccess::Write {
            check_new(view, &reference, path);
        }
    }
}

/// Checks that nothing can be created in a writable directory that must not be written.
fn check_new(view: &FileView, reference: &ReferenceModel<'_>, directory: &Path) {
    for name in ["a", "b", ".env", ".git", ".codex", "data"] {
        let forbidden = ForbiddenName {
            directory: directory.to_owned(),
            name: name.into(),
        };
        if reference.tree.lookup(&directory.join(name)) != PathState::Missing
            || view.forbidden.contains(&forbidden)
        {
            continue;
        }
        for below in ["", "a", "b", "data", "a/b"] {
            let path = directory.join(name).join(below);
            let actual = reference.access(&path);
            assert_eq!(
                actual,
                PathAccess::Write,
                "{path:?} can be created: {view:?}"
            );
        }
    }
}

fn check_shape(view: &FileView, tree: &MemoryTree) {
    assert!(view.base != PathAccess::Write);
    let key = |path: &Path| (path.components().count(), path.to_owned());
    assert!(
        view.layers
            .is_sorted_by(|one, other| key(&one.path) < key(&other.path))
    );
    for layer in &view.layers {
        let kind = match tree.lookup(&layer.path) {
            PathState::Directory => PathKind::Directory,
            PathState::File => PathKind::File,
            actual @ (PathState::Missing | PathState::Unknown | PathState::Link(_)) => {
                panic!("{layer:?} is {actual:?}")
            }
        };
        assert_eq!(layer.kind, kind, "{layer:?}");
        assert_eq!(resolve_links(tree, &layer.path).as_ref(), Some(&layer.path));
        let above = layer
            .path
            .parent()
            .map_or(view.base, |parent| view.access(parent));
        assert_ne!(layer.access, above, "{layer:?} is redundant");
    }
    assert!(view.forbidden.is_sorted_by(|one, other| one < other));
    for name in &view.forbidden {
        assert_eq!(
            tree.lookup(&name.directory),
            PathState::Directory,
            "{name:?}"
        );
        assert_eq!(view.access(&name.directory), PathAccess::Write, "{name:?}");
        let actual = tree.lookup(&name.directory.join(&name.name));
        assert!(
            matches!(actual, PathState::Missing | PathState::Link(_)),
            "{name:?} is {actual:?}"
        );
    }
    assert!(view.links.is_sorted_by(|one, other| one.0 < other.0));
    assert!(view.base == PathAccess::Hidden || view.links.is_empty());
    for (link, target) in &view.links {
        assert_eq!(tree.lookup(link), PathState::Link(target.clone()));
        assert!(
            !view
                .layers
                .iter()
                .any(|layer| link.starts_with(&layer.path))
        );
    }
}
