//! The sandbox set-up of a command: namespaces, a mount view, a Landlock domain, a seccomp filter.
//!
//! A set-up is a list of kernel operations in the order in which they are applied; it contains no
//! decisions. `exec-sandbox` derives it from a policy. Errors name the failed operation as a
//! [`SetupStep`].
//!
//! Invariant: applying a set-up makes raw system calls only and allocates nothing, because most of
//! it runs between clone and exec in the spawner's memory.

mod broker;
mod encoded_setup;
mod enter;
mod mount_view;

use std::{ffi::CString, fmt, os::fd::OwnedFd};

use crate::raw::Errno;

pub(crate) use self::{
    broker::{GuardWatch, send_listener},
    encoded_setup::{EncodedSetup, NamespaceFlags},
    enter::{
        current_account, drop_capabilities, forbid_raising_limits, keep_only_ptrace, map_account,
        restrict_by_filter, restrict_by_landlock, set_no_new_privileges, set_umask, set_up_network,
    },
    mount_view::{MountView, make_mounts_private, open_outer_proc},
};

pub use self::enter::{EnterSandboxError, enter_sandbox};

/// The sandbox set-up of one command. Nothing in it can be undone from inside.
///
/// A sandboxed process gains no privileges by exec, has no capabilities, and inherits only the
/// standard descriptors.
#[derive(Debug, Default)]
pub struct SandboxSetup {
    /// New namespaces and their contents. Absent: the server's namespaces.
    pub namespaces: Option<NamespaceSetup>,
    /// A Landlock ruleset.
    pub landlock: Option<OwnedFd>,
    /// A seccomp program. Empty: no filter. May return `SECCOMP_RET_USER_NOTIF` only with `guards`.
    pub filter: Vec<FilterInstruction>,
    /// Names that cannot be created. Requires `namespaces`, a ruleset that forbids creating
    /// anything, and a filter that notifies of every call that creates a file.
    pub guards: Vec<NameGuard>,
}

/// One instruction of a seccomp program, in the kernel's layout.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct FilterInstruction {
    /// Operation code.
    pub code: u16,
    /// Number of instructions to skip if the comparison is true.
    pub if_true: u8,
    /// Number of instructions to skip if the comparison is false.
    pub if_false: u8,
    /// Operand.
    pub k: u32,
}

/// New namespaces of a command. Mount and IPC namespaces are always new.
#[derive(Debug)]
pub struct NamespaceSetup {
    /// New user namespace: the account keeps its id inside, and has no rights outside. Required
    /// without privileges.
    pub user: bool,
    /// New pid namespace: outer processes can be neither seen nor signalled.
    pub processes: bool,
    /// New network namespace: only its own loopback interface.
    pub network: Option<NetworkNamespace>,
    /// Steps that build the mount view.
    pub steps: Vec<MountStep>,
}

/// A new network namespace.
#[derive(Debug, Default)]
pub struct NetworkNamespace {
    /// Ports of 127.0.0.1 to listen on before the command starts.
    pub listen: Vec<u16>,
    /// A connected unix socket over which the listening sockets are sent: one message of one byte,
    /// with all of them in the order of the ports. Present if there are ports.
    pub listener_socket: Option<OwnedFd>,
}

/// Number by which steps refer to a detached mount. Less than the maximum below.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct MountSlot(pub u16);

/// Most detached mounts at a time; each is a descriptor.
pub const MAX_MOUNT_SLOTS: usize = 512;

/// One step of building a mount view.
///
/// Paths in the view are absolute. They contain no symbolic link, except as [`Pin`](Self::Pin)
/// allows; a link that has appeared since makes the step fail. Paths within a slot are relative.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MountStep<P = CString> {
    /// Clones the mounts at and below `path` into a slot.
    Copy {
        /// Path to clone.
        path: P,
        /// Target slot.
        slot: MountSlot,
        /// What to do if the path does not exist.
        missing: MissingPath,
    },
    /// Makes all mounts in a slot read-only.
    ReadOnly {
        /// The slot.
        slot: MountSlot,
    },
    /// Makes the whole current view read-only and without devices.
    ReadOnlyView,
    /// Creates an empty tmpfs.
    Memory {
        /// Target slot.
        slot: MountSlot,
        /// Permissions of its root.
        mode: u32,
        /// Size limit in bytes.
        bytes: u64,
    },
    /// Mounts a procfs of the command's pid namespace. Without one, clones the outer procfs
    /// read-only.
    Processes {
        /// Target slot.
        slot: MountSlot,
    },
    /// Mounts a devpts with its own pseudo-terminals.
    Terminals {
        /// Target slot.
        slot: MountSlot,
    },
    /// Creates a directory in a slot that holds a tmpfs.
    Directory {
        /// The slot.
        slot: MountSlot,
        /// Path within the slot.
        path: P,
        /// Permissions.
        mode: u32,
    },
    /// Creates an empty file in a slot that holds a tmpfs.
    File {
        /// The slot.
        slot: MountSlot,
        /// Path within the slot.
        path: P,
        /// Permissions.
        mode: u32,
    },
    /// Creates a symbolic link in a slot that holds a tmpfs.
    Link {
        /// The slot.
        slot: MountSlot,
        /// Path within the slot.
        path: P,
        /// Target of the link.
        target: P,
    },
    /// Attaches a slot to the view. Skips a slot that is empty because its source was missing.
    Attach {
        /// The slot.
        slot: MountSlot,
        /// Mount point.
        path: P,
    },
    /// Attaches a clone of one entry of a slot to the view; the slot stays usable.
    Cover {
        /// The slot.
        slot: MountSlot,
        /// Path of the entry within the slot.
        entry: P,
        /// Mount point.
        path: P,
    },
    /// Makes `path` in the view, and everything below it, read-only.
    Protect {
        /// Path in the view.
        path: P,
    },
    /// Prevents `path` in the view from being renamed or removed; it stays usable otherwise. If its
    /// last name is a symbolic link, the link itself is pinned.
    Pin {
        /// Path in the view.
        path: P,
    },
    /// Makes a slot the root of the view. The old root disappears, except for the other slots.
    Root {
        /// The slot.
        slot: MountSlot,
    },
}

/// What to do if a path does not exist.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MissingPath {
    /// Fail the start of the command.
    Fail,
    /// Leave the slot empty.
    Skip,
}

/// Names that no call can create in one directory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NameGuard {
    /// The directory, as a path in the view.
    pub directory: CString,
    /// The guarded names.
    pub names: Vec<CString>,
}

/// A step of a sandbox set-up, as an error names it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum SetupStep {
    /// Creating namespaces.
    Namespaces,
    /// Mapping the account into its user namespace.
    Account,
    /// Setting up the network namespace.
    Network,
    /// A step of the mount view.
    Step(MountStep),
    /// A guard, or the broker of all guards.
    Guard(Option<NameGuard>),
    /// Dropping privileges.
    Privileges,
    /// Entering the Landlock domain.
    Landlock,
    /// Installing the seccomp filter.
    Filter,
}

impl SetupStep {
    /// Resolves the step code of a report.
    pub fn new(code: StepCode, steps: &[MountStep], guards: &[NameGuard]) -> Self {
        match code {
            StepCode::Namespaces => Self::Namespaces,
            StepCode::Account => Self::Account,
            StepCode::Network => Self::Network,
            StepCode::Step(index) => steps
                .get(index as usize)
                .map_or(Self::Namespaces, |step| Self::Step(step.clone())),
            StepCode::Guard(index) => Self::Guard(guards.get(index as usize).cloned()),
            StepCode::Privileges => Self::Privileges,
            StepCode::Landlock => Self::Landlock,
            StepCode::Filter => Self::Filter,
        }
    }

    /// Takes the paths from a set-up that name its steps in errors.
    pub fn take_names(setup: &mut SandboxSetup) -> (Vec<MountStep>, Vec<NameGuard>) {
        let namespaces = setup.namespaces.as_mut();
        let steps = namespaces.map(|namespaces| std::mem::take(&mut namespaces.steps));
        (steps.unwrap_or_default(), std::mem::take(&mut setup.guards))
    }
}

/// Formats the step so that it follows "cannot".
impl fmt::Display for SetupStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, path) = match self {
            Self::Namespaces => return f.write_str("make namespaces"),
            Self::Account => return f.write_str("map the account"),
            Self::Network => return f.write_str("make a network"),
            Self::Guard(None) => return f.write_str("guard names"),
            Self::Privileges => return f.write_str("give up privileges"),
            Self::Landlock => return f.write_str("enforce a Landlock ruleset"),
            Self::Filter => return f.write_str("install a filter of system calls"),
            Self::Guard(Some(guard)) => ("guard names in", &guard.directory),
            Self::Step(step) => match step {
                MountStep::ReadOnly { .. } => return f.write_str("make a copy read-only"),
                MountStep::ReadOnlyView => return f.write_str("make the file system read-only"),
                MountStep::Memory { .. } => return f.write_str("make a file system in memory"),
                MountStep::Processes { .. } => return f.write_str("make a view of processes"),
                MountStep::Terminals { .. } => return f.write_str("make a set of terminals"),
                MountStep::Root { .. } => return f.write_str("change the root"),
                MountStep::Copy { path, .. } => ("copy", path),
                MountStep::Directory { path, .. } => ("make directory", path),
                MountStep::File { path, .. } => ("make file", path),
                MountStep::Link { path, .. } => ("make link", path),
                MountStep::Attach { path, .. } => ("attach", path),
                MountStep::Cover { path, .. } => ("cover", path),
                MountStep::Protect { path } => ("protect", path),
                MountStep::Pin { path } => ("pin", path),
            },
        };
        write!(f, "{verb} `{}`", path.to_string_lossy())
    }
}

/// A step of a sandbox set-up as plain numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StepCode {
    /// Creating namespaces.
    Namespaces,
    /// Mapping the account into its user namespace.
    Account,
    /// Setting up the network namespace.
    Network,
    /// A step of the mount view, by index.
    Step(u32),
    /// A guard, by index.
    Guard(u32),
    /// Dropping privileges.
    Privileges,
    /// Entering the Landlock domain.
    Landlock,
    /// Installing the seccomp filter.
    Filter,
}

impl StepCode {
    pub(crate) fn numbers(self) -> (u32, u32) {
        match self {
            Self::Namespaces => (0, 0),
            Self::Account => (1, 0),
            Self::Network => (2, 0),
            Self::Step(index) => (3, index),
            Self::Guard(index) => (4, index),
            Self::Privileges => (5, 0),
            Self::Landlock => (6, 0),
            Self::Filter => (7, 0),
        }
    }

    /// Decodes the numbers of a report.
    pub fn from_numbers(kind: u32, index: u32) -> Self {
        match kind {
            1 => Self::Account,
            2 => Self::Network,
            3 => Self::Step(index),
            4 => Self::Guard(index),
            5 => Self::Privileges,
            6 => Self::Landlock,
            7 => Self::Filter,
            _ => Self::Namespaces,
        }
    }

    /// Returns a function that turns an error number into a failure of this step.
    pub(crate) fn failure(self) -> impl Fn(Errno) -> SetupFailure {
        move |errno| SetupFailure { step: self, errno }
    }
}

/// A failed step and its error number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SetupFailure {
    pub(crate) step: StepCode,
    pub(crate) errno: Errno,
}
