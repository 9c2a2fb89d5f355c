//! What entries name on this host.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

use exec_wire::sandbox::{Access as EntryAccess, Entry, EntryPath, SpecialPath};

use super::{
    Context, MAX_GLOBS, MAX_TARGETS, Surroundings,
    error::{GlobFault, Member, PolicyError},
    glob_scan::{Anchor, Pattern, Wild},
    native,
    path_trace::{End, Paths},
};
use crate::plan::Access;

/// What all entries name.
#[derive(Debug, Default)]
pub(super) struct Targets {
    pub(super) paths: Vec<(PathBuf, Access)>,
    pub(super) globs: Vec<DenyGlob>,
    /// Whether what every program reads is among them.
    pub(super) minimal: bool,
}

/// A glob whose matches are denied.
#[derive(Clone, Debug)]
pub(super) struct DenyGlob {
    /// The entry.
    pub(super) entry: usize,
    /// Its text.
    pub(super) pattern: String,
    /// Where it starts.
    pub(super) base: PathBuf,
    /// What it matches there.
    pub(super) wild: Wild,
}

/// Refuses an entry that names nothing on any host of this kind.
pub(super) fn check(index: usize, entry: &Entry) -> Result<(), PolicyError> {
    match &entry.path {
        EntryPath::Path { path } => native(Member::Entry(index), path).map(drop),
        EntryPath::GlobPattern { pattern } => match entry.access {
            EntryAccess::Deny => Ok(()),
            EntryAccess::Read | EntryAccess::Write => {
                Err(glob_error(index, pattern, GlobFault::NotDenied))
            }
        },
        EntryPath::Special { .. } => Ok(()),
    }
}

impl Targets {
    /// Finds what the entries name.
    pub(super) fn of(
        entries: &[Entry],
        surroundings: &Surroundings,
        context: &Context,
        paths: &mut Paths<'_>,
    ) -> Result<Self, PolicyError> {
        let mut targets = Self::default();
        for (index, entry) in entries.iter().enumerate() {
            targets.add(index, entry, surroundings, context, paths)?;
            if targets.paths.len() + targets.globs.len() > MAX_TARGETS {
                return Err(PolicyError::TooManyTargets);
            }
        }
        let globs = targets.globs.iter().map(|glob| glob.wild.glob.glob());
        if globs.collect::<BTreeSet<_>>().len() > MAX_GLOBS {
            return Err(PolicyError::TooManyGlobs);
        }
        Ok(targets)
    }

    fn add(
        &mut self,
        index: usize,
        entry: &Entry,
        surroundings: &Surroundings,
        context: &Context,
        paths: &mut Paths<'_>,
    ) -> Result<(), PolicyError> {
        let access = match entry.access {
            EntryAccess::Read => Access::Read,
            EntryAccess::Write => Access::Write,
            EntryAccess::Deny => Access::Hidden,
        };
        match &entry.path {
            EntryPath::Path { path } => {
                let path = native(Member::Entry(index), path)?;
                self.paths.push((path, access));
            }
            EntryPath::GlobPattern { pattern } => self.add_glob(index, pattern, surroundings)?,
            EntryPath::Special { value } => match value {
                SpecialPath::Root => self.paths.push(("/".into(), access)),
                SpecialPath::Minimal => self.minimal |= access != Access::Hidden,
                SpecialPath::ProjectRoots { subpath } => {
                    require_cwd(index, surroundings)?;
                    let below = subpath.as_deref().unwrap_or_default();
                    check_subpath(index, below)?;
                    let roots = surroundings.workspace_roots.iter();
                    let joined = roots.map(|root| (join(root, below), access));
                    self.paths.extend(joined);
                }
                SpecialPath::Tmpdir => {
                    let path = context.tmpdir.as_ref().map(Path::new);
                    match path.filter(|path| !path.as_os_str().is_empty()) {
                        Some(path) if path.is_absolute() => {
                            self.paths.push((path.to_owned(), access));
                        }
                        // What it allows is lost; what it denies must not be.
                        Some(_) if access == Access::Hidden => {
                            return Err(PolicyError::RelativeTmpdir { entry: index });
                        }
                        Some(_) | None => {}
                    }
                }
                SpecialPath::SlashTmp => {
                    let end = paths.trace(Path::new(SLASH_TMP)).end;
                    if let End::There { .. } = end {
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
        surroundings: &Surroundings,
    ) -> Result<(), PolicyError> {
        let fault = |fault| glob_error(index, text, fault);
        let pattern = Pattern::parse(text).map_err(fault)?;
        let root = PathBuf::from("/");
        let anchors = match pattern.anchor {
            Anchor::Root => std::slice::from_ref(&root),
            Anchor::Cwd => std::slice::from_ref(require_cwd(index, surroundings)?),
            Anchor::ProjectRoots => {
                require_cwd(index, surroundings)?;
                surroundings.workspace_roots.as_slice()
            }
        };
        for base in anchors.iter().map(|anchor| pattern.base(anchor)) {
            match &pattern.wild {
                None => self.paths.push((base, Access::Hidden)),
                Some(_) if base.parent().is_none() => return Err(fault(GlobFault::Unanchored)),
                Some(wild) => self.globs.push(DenyGlob {
                    entry: index,
                    pattern: text.to_owned(),
                    base,
                    wild: wild.clone(),
                }),
            }
        }
        Ok(())
    }
}

impl DenyGlob {
    /// Makes the error for a fault that was found while looking for matches.
    pub(super) fn error(&self, fault: GlobFault) -> PolicyError {
        glob_error(self.entry, &self.pattern, fault)
    }
}

/// Returns the policy's directory, which an entry depends on.
fn require_cwd(entry: usize, surroundings: &Surroundings) -> Result<&PathBuf, PolicyError> {
    let cwd = surroundings.cwd.as_ref();
    cwd.ok_or(PolicyError::CwdRequired { entry })
}

fn check_subpath(entry: usize, subpath: &str) -> Result<(), PolicyError> {
    let plain = |component| matches!(component, Component::Normal(_) | Component::CurDir);
    if Path::new(subpath).components().all(plain) && !subpath.contains('\0') {
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
