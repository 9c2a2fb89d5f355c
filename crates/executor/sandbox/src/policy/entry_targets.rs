//! Expands the entries of a policy into paths and globs on this host.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

use exec_wire::sandbox::{EntryAccess, EntryPath, SandboxEntry, SpecialPath};

use super::{
    MAX_GLOBS, MAX_TARGETS, PolicyRoots, ResolveContext,
    error::{GlobFault, PolicyError, PolicyMember},
    glob_scan::{GlobAnchor, GlobPattern, WildcardTail},
    native,
    path_trace::{PathTracer, TraceEnd},
};
use crate::plan::PathAccess;

/// Targets of all entries.
#[derive(Debug, Default)]
pub(super) struct EntryTargets {
    pub(super) paths: Vec<(PathBuf, PathAccess)>,
    pub(super) globs: Vec<DenyGlob>,
    /// An entry grants the minimal paths.
    pub(super) minimal: bool,
}

/// A glob. Its matches are denied.
#[derive(Clone, Debug)]
pub(super) struct DenyGlob {
    /// Index of the entry.
    pub(super) entry: usize,
    /// Text of the glob.
    pub(super) pattern: String,
    /// Directory in which the glob starts.
    pub(super) base: PathBuf,
    /// Part of the glob below `base`.
    pub(super) wildcard: WildcardTail,
}

/// Refuses an entry that is invalid on every host of this platform.
pub(super) fn check_entry(index: usize, entry: &SandboxEntry) -> Result<(), PolicyError> {
    match &entry.path {
        EntryPath::Path { path } => native(PolicyMember::Entry(index), path).map(drop),
        EntryPath::GlobPattern { pattern } => match entry.access {
            EntryAccess::Deny => Ok(()),
            EntryAccess::Read | EntryAccess::Write => {
                Err(glob_error(index, pattern, GlobFault::NotDenied))
            }
        },
        EntryPath::Special { .. } => Ok(()),
    }
}

impl EntryTargets {
    /// Expands the entries.
    pub(super) fn of(
        entries: &[SandboxEntry],
        roots: &PolicyRoots,
        context: &ResolveContext,
        tracer: &mut PathTracer<'_>,
    ) -> Result<Self, PolicyError> {
        let mut targets = Self::default();
        for (index, entry) in entries.iter().enumerate() {
            targets.add(index, entry, roots, context, tracer)?;
            if targets.paths.len() + targets.globs.len() > MAX_TARGETS {
                return Err(PolicyError::TooManyTargets);
            }
        }
        let globs = targets.globs.iter().map(|glob| glob.wildcard.glob.glob());
        if globs.collect::<BTreeSet<_>>().len() > MAX_GLOBS {
            return Err(PolicyError::TooManyGlobs);
        }
        Ok(targets)
    }

    fn add(
        &mut self,
        index: usize,
        entry: &SandboxEntry,
        roots: &PolicyRoots,
        context: &ResolveContext,
        tracer: &mut PathTracer<'_>,
    ) -> Result<(), PolicyError> {
        let access = match entry.access {
            EntryAccess::Read => PathAccess::Read,
            EntryAccess::Write => PathAccess::Write,
            EntryAccess::Deny => PathAccess::Hidden,
        };
        match &entry.path {
            EntryPath::Path { path } => {
                let path = native(PolicyMember::Entry(index), path)?;
                self.paths.push((path, access));
            }
            EntryPath::GlobPattern { pattern } => self.add_glob(index, pattern, roots)?,
            EntryPath::Special { value } => match value {
                SpecialPath::Root => self.paths.push(("/".into(), access)),
                SpecialPath::Minimal => self.minimal |= access != PathAccess::Hidden,
                SpecialPath::ProjectRoots { subpath } => {
                    require_cwd(index, roots)?;
                    let below = subpath.as_deref().unwrap_or_default();
                    check_subpath(index, below)?;
                    let roots = roots.workspace_roots.iter();
                    let joined = roots.map(|root| (join(root, below), access));
                    self.paths.extend(joined);
                }
                SpecialPath::Tmpdir => {
                    let path = context.tmpdir.as_ref().map(Path::new);
                    match path.filter(|path| !path.as_os_str().is_empty()) {
                        Some(path) if path.is_absolute() => {
                            self.paths.push((path.to_owned(), access));
                        }
                        // A grant may be dropped, a denial must not be.
                        Some(_) if access == PathAccess::Hidden => {
                            return Err(PolicyError::RelativeTmpdir { entry: index });
                        }
                        Some(_) | None => {}
                    }
                }
                SpecialPath::SlashTmp => {
                    let end = tracer.trace(Path::new(SLASH_TMP)).end;
                    if let TraceEnd::Exists { .. } = end {
                        self.paths.push((SLASH_TMP.into(), access));
                    }
                }
                SpecialPath::Unknown { .. } => {}
            },
        }
        Ok(())
    }

    fn add_glob(
        &mut self,
        index: usize,
        text: &str,
        roots: &PolicyRoots,
    ) -> Result<(), PolicyError> {
        let fault = |fault| glob_error(index, text, fault);
        let pattern = GlobPattern::parse(text).map_err(fault)?;
        let root = PathBuf::from("/");
        let anchors = match pattern.anchor {
            GlobAnchor::Root => std::slice::from_ref(&root),
            GlobAnchor::Cwd => std::slice::from_ref(require_cwd(index, roots)?),
            GlobAnchor::ProjectRoots => {
                require_cwd(index, roots)?;
                roots.workspace_roots.as_slice()
            }
        };
        for base in anchors.iter().map(|anchor| pattern.base(anchor)) {
            match &pattern.wildcard {
                None => self.paths.push((base, PathAccess::Hidden)),
                Some(_) if base.parent().is_none() => return Err(fault(GlobFault::Unanchored)),
                Some(wildcard) => self.globs.push(DenyGlob {
                    entry: index,
                    pattern: text.to_owned(),
                    base,
                    wildcard: wildcard.clone(),
                }),
            }
        }
        Ok(())
    }
}

impl DenyGlob {
    /// Returns the error for a fault found during the scan.
    pub(super) fn error(&self, fault: GlobFault) -> PolicyError {
        glob_error(self.entry, &self.pattern, fault)
    }
}

/// Returns the directory of the policy, which an entry requires.
fn require_cwd(entry: usize, roots: &PolicyRoots) -> Result<&PathBuf, PolicyError> {
    let cwd = roots.cwd.as_ref();
    cwd.ok_or(PolicyError::CwdRequired { entry })
}

fn check_subpath(entry: usize, subpath: &str) -> Result<(), PolicyError> {
    let is_plain = |component| matches!(component, Component::Normal(_) | Component::CurDir);
    if Path::new(subpath).components().all(is_plain) && !subpath.contains('\0') {
        return Ok(());
    }
    let subpath = subpath.to_owned();
    Err(PolicyError::Subpath { entry, subpath })
}

/// Joins a path that may be empty.
fn join(root: &Path, below: &str) -> PathBuf {
    if below.is_empty() {
        return root.to_owned();
    }
    root.join(below)
}

fn glob_error(entry: usize, pattern: &str, fault: GlobFault) -> PolicyError {
    let pattern = pattern.to_owned();
    PolicyError::Glob {
        entry,
        pattern,
        fault,
    }
}

const SLASH_TMP: &str = "/tmp";
