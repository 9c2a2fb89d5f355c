//! The sandbox set-up of a command: namespaces, a mount view, a Landlock domain, a seccomp filter.
//!
//! A set-up is a list of kernel operations in the order in which they are applied; it contains no
//! decisions. `exec-sandbox` derives it from a policy.
//!
//! Invariant: applying a set-up makes raw system calls only and allocates nothing, because most of
//! it runs between clone and exec in the spawner's memory.

mod broker;
mod encoded_setup;
mod enter;
mod guard_watch;
mod mount_view;
mod namespaces;
mod restrict;
mod setup_step;

use std::{ffi::CString, os::fd::OwnedFd};

pub(crate) use self::{
    encoded_setup::{EncodedSetup, NamespaceFlags},
    guard_watch::{GuardWatch, send_listener},
    mount_view::{MountView, make_mounts_private, open_outer_proc},
    namespaces::{current_account, map_account, set_umask, set_up_network},
    restrict::{
        drop_capabilities, forbid_raising_limits, keep_only_ptrace, restrict_by_filter,
        restrict_by_landlock, set_no_new_privileges,
    },
    setup_step::SetupFailure,
};
pub use self::{
    enter::{EnterSandboxError, enter_sandbox},
    setup_step::{SetupStep, StepCode},
};

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
