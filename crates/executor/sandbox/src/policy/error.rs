//! Why a policy has no plan.

use std::fmt;

use exec_wire::{limits, path_uri::NativePathError};

use super::{
    MAX_ENTRIES, MAX_GLOBS, MAX_LAYERS, MAX_MATCHES, MAX_SCANNED, MAX_TARGETS, MAX_WORKSPACE_ROOTS,
};

/// Why a policy cannot be resolved. In every case nothing was done, and the caller must send another
/// policy; the text names the member that is at fault.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Caller: the level asks for something that only Windows has.
    #[error("windowsSandboxLevel: `mxc` is not available on this platform")]
    WindowsOnly,
    /// Caller: Landlock alone cannot enforce a policy that restricts writing.
    #[error(
        "useLegacyLandlock: a policy that restricts files cannot be enforced by Landlock alone"
    )]
    LegacyLandlock,
    /// Caller: there are more entries than a policy may have.
    #[error(
        "permissions.file_system.entries: {0} entries; at most {most} are allowed",
        most = MAX_ENTRIES
    )]
    TooManyEntries(usize),
    /// Caller: there are more workspace roots than a policy may have.
    #[error(
        "workspaceRoots: {0} roots; at most {most} are allowed",
        most = MAX_WORKSPACE_ROOTS
    )]
    TooManyWorkspaceRoots(usize),
    /// Caller: with the workspace roots put in, the entries name more paths than a policy may.
    #[error(
        "permissions.file_system.entries: they name more than {} paths on this host",
        MAX_TARGETS
    )]
    TooManyTargets,
    /// Caller: there are more globs than a policy may have.
    #[error("permissions.file_system.entries: more than {} globs", MAX_GLOBS)]
    TooManyGlobs,
    /// Caller: the plan would have more layers than can be mounted.
    #[error(
        "permissions.file_system.entries: they need more than {} mounts or forbidden names",
        MAX_LAYERS
    )]
    TooManyLayers,
    /// Caller: a path belongs to another host.
    #[error("{member}: {error}")]
    Path {
        /// Which path.
        member: PolicyMember,
        /// What is wrong with it.
        error: NativePathError,
    },
    /// Caller: a path holds a NUL byte, so it is nowhere.
    #[error("{0}: path contains a NUL byte")]
    Nul(PolicyMember),
    /// Caller: an entry relates to a directory that nobody named.
    #[error(
        "permissions.file_system.entries[{entry}]: a policy with dynamic permissions requires cwd"
    )]
    CwdRequired {
        /// Which entry.
        entry: usize,
    },
    /// Caller: what is below a project root must be named by a plain relative path.
    #[error(
        "permissions.file_system.entries[{entry}]: subpath {subpath:?} is no relative path without `..`"
    )]
    Subpath {
        /// Which entry.
        entry: usize,
        /// The text.
        subpath: String,
    },
    /// Caller: `TMPDIR` is relative, so it cannot be denied.
    #[error("permissions.file_system.entries[{entry}]: TMPDIR of the command is not absolute")]
    RelativeTmpdir {
        /// Which entry.
        entry: usize,
    },
    /// Caller: a glob does not do what it seems to.
    #[error("permissions.file_system.entries[{entry}]: glob {pattern:?} {fault}")]
    Glob {
        /// Which entry.
        entry: usize,
        /// The text.
        pattern: String,
        /// What is wrong with it.
        fault: GlobFault,
    },
}

/// What is wrong with a glob.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GlobFault {
    /// It allows something.
    #[error("may only deny access")]
    NotDenied,
    /// It is too long.
    #[error("is longer than {} bytes", limits::MAX_PATTERN_BYTES)]
    TooLong,
    /// It is no glob.
    #[error("cannot be used: {0}")]
    Broken(String),
    /// The whole host would have to be searched.
    #[error("has no fixed directory below the root")]
    Unanchored,
    /// It would never match.
    #[error("has `.` or `..` after a wildcard")]
    Dots,
    /// It relates to project roots, and to the root of the host.
    #[error("must be relative to the project roots")]
    Absolute,
    /// It matches too much.
    #[error("matches more than {} files", MAX_MATCHES)]
    TooManyMatches,
    /// It looks at too much.
    #[error("has more than {} files to look at", MAX_SCANNED)]
    TooMuchToScan,
}

/// A member of the `sandbox` object that holds a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum PolicyMember {
    /// `permissions.file_system.entries[…]`.
    Entry(usize),
    /// `cwd`.
    Cwd,
    /// `policyContext.cwd`.
    ContextCwd,
    /// `workspaceRoots[…]`.
    WorkspaceRoot(usize),
    /// `policyContext.workspaceRoots[…]`.
    ContextWorkspaceRoot(usize),
}

impl fmt::Display for PolicyMember {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry(index) => write!(out, "permissions.file_system.entries[{index}]"),
            Self::Cwd => out.write_str("cwd"),
            Self::ContextCwd => out.write_str("policyContext.cwd"),
            Self::WorkspaceRoot(index) => write!(out, "workspaceRoots[{index}]"),
            Self::ContextWorkspaceRoot(index) => {
                write!(out, "policyContext.workspaceRoots[{index}]")
            }
        }
    }
}
