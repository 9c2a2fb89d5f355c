//! Errors of policy resolution.

use std::fmt;

use exec_wire::{limits, path_uri::NativePathError};

use super::{
    MAX_ENTRIES, MAX_GLOBS, MAX_LAYERS, MAX_MATCHES, MAX_SCANNED, MAX_TARGETS, MAX_WORKSPACE_ROOTS,
};

/// Why a policy cannot be resolved. Nothing was done, and the caller must send another policy. The
/// message names the invalid member.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Caller: the level exists only on Windows.
    #[error("windowsSandboxLevel: `mxc` is not available on this platform")]
    WindowsOnly,
    /// Caller: Landlock alone cannot enforce a policy that restricts writing.
    #[error(
        "useLegacyLandlock: a policy that restricts files cannot be enforced by Landlock alone"
    )]
    LegacyLandlock,
    /// Caller: too many entries.
    #[error(
        "permissions.file_system.entries: {0} entries; at most {most} are allowed",
        most = MAX_ENTRIES
    )]
    TooManyEntries(usize),
    /// Caller: too many workspace roots.
    #[error(
        "workspaceRoots: {0} roots; at most {most} are allowed",
        most = MAX_WORKSPACE_ROOTS
    )]
    TooManyWorkspaceRoots(usize),
    /// Caller: the entries expand to too many paths.
    #[error(
        "permissions.file_system.entries: expand to more than {} paths on this host",
        MAX_TARGETS
    )]
    TooManyTargets,
    /// Caller: too many globs.
    #[error("permissions.file_system.entries: more than {} globs", MAX_GLOBS)]
    TooManyGlobs,
    /// Caller: the plan would have too many layers.
    #[error(
        "permissions.file_system.entries: require more than {} mounts or forbidden names",
        MAX_LAYERS
    )]
    TooManyLayers,
    /// Caller: a path is not valid on this host.
    #[error("{member}: {error}")]
    Path {
        /// Member that holds the path.
        member: PolicyMember,
        /// Cause.
        error: NativePathError,
    },
    /// Caller: a path contains a NUL byte.
    #[error("{0}: path contains a NUL byte")]
    Nul(PolicyMember),
    /// Caller: an entry depends on a working directory that the policy does not name.
    #[error(
        "permissions.file_system.entries[{entry}]: a policy with dynamic permissions requires cwd"
    )]
    CwdRequired {
        /// Index of the entry.
        entry: usize,
    },
    /// Caller: the subpath of a project root must be relative and without `..`.
    #[error(
        "permissions.file_system.entries[{entry}]: subpath {subpath:?} must be a relative path without `..`"
    )]
    Subpath {
        /// Index of the entry.
        entry: usize,
        /// Invalid subpath.
        subpath: String,
    },
    /// Caller: `TMPDIR` is relative, so it cannot be denied.
    #[error("permissions.file_system.entries[{entry}]: TMPDIR of the command is not absolute")]
    RelativeTmpdir {
        /// Index of the entry.
        entry: usize,
    },
    /// Caller: invalid glob.
    #[error("permissions.file_system.entries[{entry}]: glob {pattern:?} {fault}")]
    Glob {
        /// Index of the entry.
        entry: usize,
        /// Text of the glob.
        pattern: String,
        /// Problem with the glob.
        fault: GlobFault,
    },
}

/// Problem with a glob.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GlobFault {
    /// It grants access.
    #[error("may only deny access")]
    NotDenied,
    /// It is too long.
    #[error("is longer than {} bytes", limits::MAX_PATTERN_BYTES)]
    TooLong,
    /// Its syntax is invalid.
    #[error("is invalid: {0}")]
    Syntax(String),
    /// It would have to search the whole host.
    #[error("has no fixed directory below the root")]
    Unanchored,
    /// It would never match.
    #[error("has `.` or `..` after a wildcard")]
    Dots,
    /// It is both absolute and relative to the project roots.
    #[error("must be relative to the project roots")]
    Absolute,
    /// It matches too many files.
    #[error("matches more than {} files", MAX_MATCHES)]
    TooManyMatches,
    /// It scans too many files.
    #[error("scans more than {} files", MAX_SCANNED)]
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
