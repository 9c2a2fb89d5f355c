//! What a policy's relative parts relate to.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use exec_wire::{path_uri::PathUri, sandbox::Sandbox};

use super::{
    bounds::MAX_WORKSPACE_ROOTS,
    error::{Member, PolicyError},
};

/// What a policy is resolved for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Context {
    /// Whom it encloses.
    pub purpose: Purpose,
    /// The command's directory, or the server's for operations on files. Absolute.
    pub cwd: PathBuf,
    /// `TMPDIR` of the enclosed command.
    pub tmpdir: Option<OsString>,
    /// What is readable whatever the policy says about the directories above: the server's own
    /// executables, without which nothing would start.
    pub always_readable: Vec<PathBuf>,
    /// What stays as it is whatever the policy makes writable, such as the directory of the server's
    /// own socket: nothing is created, removed or replaced directly in these directories, and these
    /// files are neither written nor replaced.
    pub protected: Arc<[PathBuf]>,
}

/// Whom a policy encloses.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Purpose {
    /// A command.
    Process,
    /// Operations on files.
    Files,
}

/// What the policy's own members say about its surroundings.
#[derive(Debug)]
pub(super) struct Surroundings {
    /// What relative globs relate to. Absent: nobody said.
    pub(super) cwd: Option<PathBuf>,
    /// What project roots stand for.
    pub(super) workspace_roots: Vec<PathBuf>,
}

impl Surroundings {
    /// Reads them, `policyContext` first.
    pub(super) fn of(sandbox: &Sandbox, context: &Context) -> Result<Self, PolicyError> {
        let inner = sandbox.policy_context.as_ref();
        let inner_cwd = inner.and_then(|inner| inner.cwd.as_ref());
        let cwd = inner_cwd
            .map(|cwd| (Member::ContextCwd, cwd))
            .or(sandbox.cwd.as_ref().map(|cwd| (Member::Cwd, cwd)));
        let cwd = match (cwd, context.purpose) {
            (Some((member, cwd)), _) => Some(native(member, cwd)?),
            (None, Purpose::Process) => Some(context.cwd.clone()),
            (None, Purpose::Files) => None,
        };
        let (member, roots): (fn(usize) -> Member, _) = match inner {
            Some(inner) => (Member::ContextWorkspaceRoot, &inner.workspace_roots),
            None => (Member::WorkspaceRoot, &sandbox.workspace_roots),
        };
        if roots.len() > MAX_WORKSPACE_ROOTS {
            return Err(PolicyError::TooManyWorkspaceRoots(roots.len()));
        }
        let native = |(index, root)| native(member(index), root);
        let workspace_roots = roots.iter().enumerate().map(native);
        Ok(Self {
            cwd,
            workspace_roots: workspace_roots.collect::<Result<_, _>>()?,
        })
    }
}

/// Returns the path on this host that a member names.
pub(super) fn native(member: Member, uri: &PathUri) -> Result<PathBuf, PolicyError> {
    let path = uri
        .to_native()
        .map_err(|error| PolicyError::Path { member, error })?;
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(PolicyError::Nul(member));
    }
    Ok(path)
}
