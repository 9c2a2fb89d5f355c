//! From a policy to a plan: what the `sandbox` object of a request comes to on this host.
//!
//! Pure: everything about the host comes through [`FileFacts`](crate::facts::Facts), and the same
//! facts make the same plan. Invariant: a plan never allows what the policy does not; what cannot
//! be told is treated as if it were the worst. Not here: how a plan is enforced.
//!
//! The way from a policy to a plan.
//!
//! What a policy's relative parts relate to.
//!
//! How much a policy may ask for. Each request with a policy is resolved anew, so all of it is
//! bounded.

mod access_rules;
mod entry_targets;
mod error;
mod file_restrictions;
mod glob_scan;
mod path_trace;
#[cfg(any(test, fuzzing))]
pub(crate) mod reference_model;
#[cfg(test)]
mod tests;

pub use self::{
    error::{GlobFault, PolicyError, PolicyMember},
    file_restrictions::{reads_everything, writes_everything},
};

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use exec_wire::{path_uri::PathUri, sandbox::Sandbox};

use self::{
    access_rules::{AccessRules, protect_kernel, protect_metadata},
    entry_targets::EntryTargets,
    file_restrictions::{FileRestrictions, restrictions},
    glob_scan::scan,
    path_trace::{PathTrace, PathTracer, TraceEnd},
};
use crate::{
    facts::FileFacts,
    plan::{FileAccess, FileView, NetworkScope, PathAccess, SandboxPlan},
};

/// What nearly every program reads, where it exists: as the stock server.
const MINIMAL_PATHS: [&str; 8] = [
    "/bin",
    "/sbin",
    "/usr",
    "/etc",
    "/lib",
    "/lib64",
    "/nix/store",
    "/run/current-system/sw",
];

/// Makes the plan of a policy.
///
/// Looks at the host through `facts` only, and blocks as long as they do: globs may look at very
/// many files.
///
/// # Errors
/// Refuses what cannot be resolved on this host. Nothing is left out silently, but paths that do
/// not exist and cannot come to be.
pub fn resolve(
    sandbox: &Sandbox,
    context: &ResolveContext,
    facts: &dyn FileFacts,
) -> Result<SandboxPlan, PolicyError> {
    let network = match context.purpose {
        PolicyPurpose::Process => file_restrictions::network(sandbox),
        PolicyPurpose::Files => NetworkScope::None,
    };
    let restrictions = restrictions(sandbox);
    if let Some(FileRestrictions { entries, .. }) = restrictions {
        if entries.len() > MAX_ENTRIES {
            return Err(PolicyError::TooManyEntries(entries.len()));
        }
        for (index, entry) in entries.iter().enumerate() {
            entry_targets::check_entry(index, entry)?;
        }
    }
    file_restrictions::check_platform(sandbox)?;
    let files = match restrictions {
        Some(restrictions) if !writes_everything(sandbox) => {
            let roots = PolicyRoots::of(sandbox, context)?;
            FileAccess::View(view(restrictions, &roots, context, facts)?)
        }
        Some(_) | None => FileAccess::All,
    };
    Ok(SandboxPlan { files, network })
}

fn view(
    restrictions: FileRestrictions<'_>,
    roots: &PolicyRoots,
    context: &ResolveContext,
    facts: &dyn FileFacts,
) -> Result<FileView, PolicyError> {
    let mut tracer = PathTracer::new(facts);
    let targets = EntryTargets::of(restrictions.entries, roots, context, &mut tracer)?;
    let trace = |(path, access): &(PathBuf, PathAccess)| (tracer.trace(path), *access);
    let mut rules = entry_rules(targets.paths.iter().map(trace).collect());
    deny_matches(&targets, &restrictions, context, &mut rules, &mut tracer)?;
    if targets.minimal || context.purpose == PolicyPurpose::Files {
        for path in MINIMAL_PATHS {
            rules.add_platform_default(&tracer.trace(Path::new(path)));
        }
    }
    for path in &context.always_readable {
        rules.add_required(&tracer.trace(path));
    }
    protect_metadata(&mut rules, &mut tracer);
    protect_kernel(&mut rules, &mut tracer);
    for path in context.protected.iter() {
        rules.protect_always(&tracer.trace(path));
    }
    rules.into_view()
}

/// Puts together what the entries say about paths.
///
/// A link that an enclosed command can replace leads where that command wants the next one to go: for
/// its directory for temporary files, say. So nothing is allowed by such a link; what it takes away is
/// taken away all the same. Whether a link can be replaced is told as if all links counted, so that
/// no order of them matters.
fn entry_rules(entries: Vec<(PathTrace, PathAccess)>) -> AccessRules {
    let mut all = AccessRules::default();
    for (trace, access) in &entries {
        all.add(trace.clone(), *access);
    }
    let is_replaceable = |trace: &PathTrace| {
        let mut places = trace.links.iter().map(|link| &link.place.directory);
        places.any(|directory| all.access(directory) == PathAccess::Write)
    };
    let (replaceable, plain): (Vec<_>, Vec<_>) = entries
        .into_iter()
        .partition(|(trace, access)| *access != PathAccess::Hidden && is_replaceable(trace));
    if replaceable.is_empty() {
        return all;
    }
    let mut rules = AccessRules::default();
    for (trace, access) in plain {
        rules.add(trace, access);
    }
    let (writing, reading): (Vec<_>, Vec<_>) = replaceable
        .into_iter()
        .partition(|(_, access)| *access == PathAccess::Write);
    for (trace, _) in reading {
        rules.protect(&trace);
    }
    for (trace, _) in writing {
        rules.add_replaceable_write(trace);
    }
    rules
}

/// Denies what globs match.
fn deny_matches(
    targets: &EntryTargets,
    restrictions: &FileRestrictions<'_>,
    context: &ResolveContext,
    rules: &mut AccessRules,
    tracer: &mut PathTracer<'_>,
) -> Result<(), PolicyError> {
    let mut allowed = rules.allowed_paths();
    for path in &context.always_readable {
        if let TraceEnd::Exists { path, .. } = tracer.trace(path).end {
            allowed.insert(path);
        }
    }
    let matches = scan(&targets.globs, restrictions.depth, &allowed, tracer)?;
    for trace in &matches.bases {
        rules.add_glob_base(trace);
    }
    for path in &matches.links {
        rules.add(tracer.trace(path), PathAccess::Hidden);
    }
    for directory in matches.unreadable {
        rules.cap_access(directory, PathAccess::Hidden);
    }
    for (path, kind) in matches.plain {
        let (named, links) = (path.clone(), Vec::new());
        let end = TraceEnd::Exists { path, kind };
        let trace = PathTrace { named, links, end };
        rules.add(trace, PathAccess::Hidden);
    }
    Ok(())
}

/// What a policy is resolved for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ResolveContext {
    /// Whom it encloses.
    pub purpose: PolicyPurpose,
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
pub enum PolicyPurpose {
    /// A command.
    Process,
    /// Operations on files.
    Files,
}

/// What the policy's own members say about its surroundings.
#[derive(Debug)]
struct PolicyRoots {
    /// What relative globs relate to. Absent: nobody said.
    cwd: Option<PathBuf>,
    /// What project roots stand for.
    workspace_roots: Vec<PathBuf>,
}

impl PolicyRoots {
    /// Reads them, `policyContext` first.
    fn of(sandbox: &Sandbox, context: &ResolveContext) -> Result<Self, PolicyError> {
        let inner = sandbox.policy_context.as_ref();
        let inner_cwd = inner.and_then(|inner| inner.cwd.as_ref());
        let cwd = inner_cwd
            .map(|cwd| (PolicyMember::ContextCwd, cwd))
            .or(sandbox.cwd.as_ref().map(|cwd| (PolicyMember::Cwd, cwd)));
        let cwd = match (cwd, context.purpose) {
            (Some((member, cwd)), _) => Some(native(member, cwd)?),
            (None, PolicyPurpose::Process) => Some(context.cwd.clone()),
            (None, PolicyPurpose::Files) => None,
        };
        let (member, roots): (fn(usize) -> PolicyMember, _) = match inner {
            Some(inner) => (PolicyMember::ContextWorkspaceRoot, &inner.workspace_roots),
            None => (PolicyMember::WorkspaceRoot, &sandbox.workspace_roots),
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
fn native(member: PolicyMember, uri: &PathUri) -> Result<PathBuf, PolicyError> {
    let path = uri
        .to_native()
        .map_err(|error| PolicyError::Path { member, error })?;
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(PolicyError::Nul(member));
    }
    Ok(path)
}

/// Entries of a policy. The largest that clients send have some dozens.
const MAX_ENTRIES: usize = 4096;
/// Workspace roots. Each entry for project roots, and each of their globs, is there once per root.
const MAX_WORKSPACE_ROOTS: usize = 256;
/// Paths and globs that the entries name, after project roots were put in: as many as entries, so
/// that no more files are looked at than the client wrote down.
const MAX_TARGETS: usize = MAX_ENTRIES;
/// Distinct globs. Each is compiled, which costs far more than a path.
const MAX_GLOBS: usize = 256;
/// Files that globs match: as the stock server.
const MAX_MATCHES: usize = 8192;
/// Names that all globs of a policy look at. A scan of this size takes about a second.
const MAX_SCANNED: usize = 1_000_000;
/// Layers, and as many forbidden names: all matches and targets, and what their metadata adds. The
/// kernel allows 100 000 mounts in a namespace by default.
const MAX_LAYERS: usize = 32_768;
/// Symbolic links on the way to one path: as the kernel.
const MAX_LINKS: usize = 40;
/// A file of git's that names a directory: no path is longer than 4 KiB, and a little stands before
/// and after it.
const MAX_GIT_FILE_BYTES: usize = 4096 + 64;
