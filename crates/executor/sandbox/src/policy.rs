//! Resolves a policy into a plan: what the `sandbox` object of a request allows on this host.
//!
//! Pure: all facts about the host come through [`FileFacts`], and the same facts yield the same
//! plan. Invariant: a plan never allows more than its policy. An unknown fact is resolved to the
//! strictest case. Every input is limited, because each request may carry a new policy.
//!
//! Not here: how a plan is enforced.

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

use exec_wire::{path_uri::PathUri, sandbox::SandboxPolicy};

use self::{
    access_rules::{AccessRules, protect_kernel, protect_metadata},
    entry_targets::EntryTargets,
    file_restrictions::{FileRestrictions, restrictions},
    glob_scan::scan_globs,
    path_trace::{PathTrace, PathTracer, TraceEnd},
};
use crate::{
    facts::FileFacts,
    plan::{FileAccess, FileView, NetworkScope, PathAccess, SandboxPlan},
};

/// Paths that nearly every program reads, where they exist. The same list as the stock server.
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

/// Resolves a policy into a plan.
///
/// Reads the host only through `facts`, and blocks as long as they do: globs may scan many files.
///
/// # Errors
/// Refuses a policy that cannot be resolved on this host. Skips nothing silently, except paths that
/// do not exist and cannot be created.
pub fn resolve(
    sandbox: &SandboxPolicy,
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

/// Combines the entries for paths.
///
/// A sandboxed command can replace a link in a writable directory, and so redirect an entry of the
/// next command's policy, for example its directory for temporary files. Therefore such a link
/// grants nothing, but still restricts. Whether a link is replaceable is decided with all links in
/// effect, so that their order does not matter.
fn entry_rules(entries: Vec<(PathTrace, PathAccess)>) -> AccessRules {
    let mut all = AccessRules::default();
    for (trace, access) in &entries {
        all.add(trace.clone(), *access);
    }
    let is_replaceable = |trace: &PathTrace| {
        let mut locations = trace.links.iter().map(|link| &link.location.directory);
        locations.any(|directory| all.access(directory) == PathAccess::Write)
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

/// Denies the matches of globs.
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
    let matches = scan_globs(&targets.globs, restrictions.depth, &allowed, tracer)?;
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

/// Context in which a policy is resolved.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ResolveContext {
    /// What runs under the policy.
    pub purpose: PolicyPurpose,
    /// Working directory of the command, or of the server for file operations. Absolute.
    pub cwd: PathBuf,
    /// `TMPDIR` of the command.
    pub tmpdir: Option<OsString>,
    /// Paths that stay readable even if the policy hides a parent directory: the server's own
    /// executables, without which no command would start.
    pub always_readable: Vec<PathBuf>,
    /// Paths that stay unchanged even if the policy makes them writable, such as the directory of
    /// the server's socket: nothing is created, removed or replaced directly in these directories,
    /// and these files are neither written nor replaced.
    pub protected: Arc<[PathBuf]>,
}

/// What runs under a policy.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PolicyPurpose {
    /// A command.
    Process,
    /// File operations.
    Files,
}

/// Directories that the policy names as bases of relative paths.
#[derive(Debug)]
struct PolicyRoots {
    /// Base of relative globs. Absent if the policy names no directory.
    cwd: Option<PathBuf>,
    /// Directories that `project_roots` entries refer to.
    workspace_roots: Vec<PathBuf>,
}

impl PolicyRoots {
    /// Reads the directories; members of `policyContext` take precedence.
    fn of(sandbox: &SandboxPolicy, context: &ResolveContext) -> Result<Self, PolicyError> {
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

/// Returns the native path of a member.
fn native(member: PolicyMember, uri: &PathUri) -> Result<PathBuf, PolicyError> {
    let path = uri
        .to_native()
        .map_err(|error| PolicyError::Path { member, error })?;
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(PolicyError::Nul(member));
    }
    Ok(path)
}

/// Maximum number of entries. The largest policies of clients have some dozens.
const MAX_ENTRIES: usize = 4096;
/// Maximum number of workspace roots. Every entry and glob for project roots is expanded once per
/// root.
const MAX_WORKSPACE_ROOTS: usize = 256;
/// Maximum number of paths and globs after the expansion of project roots. Equal to the limit on
/// entries, so that resolution reads no more files than the client listed.
const MAX_TARGETS: usize = MAX_ENTRIES;
/// Maximum number of distinct globs. Compiling one costs far more than a path.
const MAX_GLOBS: usize = 256;
/// Maximum number of glob matches: the limit of the stock server.
const MAX_MATCHES: usize = 8192;
/// Maximum number of names that the globs of a policy scan. A scan of this size takes about a
/// second.
const MAX_SCANNED: usize = 1_000_000;
/// Maximum number of layers, and of forbidden names: all matches and targets, plus their metadata.
/// By default, the kernel allows 100 000 mounts per namespace.
const MAX_LAYERS: usize = 32_768;
/// Maximum number of symbolic links on one path: the kernel's limit.
const MAX_LINKS: usize = 40;
/// Maximum size of a git file that names a directory: a path of up to 4 KiB, with a short prefix
/// and a line end.
const MAX_GIT_FILE_BYTES: usize = 4096 + 64;
