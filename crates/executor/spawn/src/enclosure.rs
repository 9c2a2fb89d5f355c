//! What encloses a command: namespaces, a view of the files, a Landlock domain, a filter of system
//! calls. Steps of the kernel's, in the order in which they are taken; nothing is decided here.
//!
//! Whatever applies an enclosure makes raw system calls only and allocates nothing: most of it runs
//! between a clone and an exec, in the memory of the spawner.
//!
//! Not here: why (`exec-sandbox` makes these from a policy).

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
    enter::{EnterError, enter},
    setup_step::{SetupStep, StepCode},
};

/// Everything that encloses one command. Nothing in it can be undone from inside.
///
/// Whoever is enclosed gains no privileges by exec, has no capabilities, and inherits the standard
/// descriptors only.
#[derive(Debug, Default)]
pub struct Enclosure {
    /// Namespaces of its own, and what is in them. Absent: the server's.
    pub namespaces: Option<Namespaces>,
    /// A Landlock ruleset.
    pub landlock: Option<OwnedFd>,
    /// A program of seccomp. Empty: none. May return `SECCOMP_RET_USER_NOTIF` only with `guards`.
    pub filter: Vec<Instruction>,
    /// Names that cannot be made. Needs `namespaces`, a ruleset in which nothing can be made at all,
    /// and a filter that notifies of the calls that make something.
    pub guards: Vec<Guard>,
}

/// One instruction of a seccomp program, as the kernel reads it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct Instruction {
    /// What to do.
    pub code: u16,
    /// Instructions to skip if it is true.
    pub if_true: u8,
    /// Instructions to skip if it is not.
    pub if_false: u8,
    /// A number.
    pub k: u32,
}

/// Namespaces of a command's own. There is always one of mounts and one of IPC.
#[derive(Debug)]
pub struct Namespaces {
    /// Of users: the account keeps its number, and is nobody outside. Needed without privileges.
    pub user: bool,
    /// Of processes: nothing outside can be seen or signalled.
    pub processes: bool,
    /// Of the network: a loopback of its own, and nothing else.
    pub network: Option<NetworkNamespace>,
    /// How its view of the files is made.
    pub steps: Vec<Step>,
}

/// A network of a command's own.
#[derive(Debug, Default)]
pub struct NetworkNamespace {
    /// Ports of 127.0.0.1 that are listened on before the command runs.
    pub listen: Vec<u16>,
    /// A connected unix socket on which the listening sockets are handed out: one message of one
    /// byte, with all of them in the order of the ports. Present if there are ports.
    pub door: Option<OwnedFd>,
}

/// A number by which steps name a detached mount. Below [`MAX_SLOTS`].
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Slot(pub u16);

/// Most detached mounts at a time: each is a descriptor.
pub const MAX_SLOTS: usize = 512;

/// One step of making a view of the files.
///
/// Paths of the view are absolute and hold no symbolic link, but for what [`Pin`](Self::Pin) says:
/// one that turned up since makes the step fail. Paths within a slot are relative.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Step<P = CString> {
    /// Copies the mounts at and below `path` into a slot.
    Copy {
        /// What.
        path: P,
        /// Where to.
        slot: Slot,
        /// What it means that there is nothing.
        missing: Missing,
    },
    /// Makes everything in a slot read-only.
    ReadOnly {
        /// Which.
        slot: Slot,
    },
    /// Makes the whole view, as it is now, read-only and without devices.
    ReadOnlyView,
    /// Makes an empty file system in memory.
    Memory {
        /// Where to.
        slot: Slot,
        /// Permissions of its root.
        mode: u32,
        /// How much it may hold.
        bytes: u64,
    },
    /// Makes a view of the processes of the command's own namespace. Without one: copies that of
    /// the namespace outside, read-only.
    Processes {
        /// Where to.
        slot: Slot,
    },
    /// Makes a set of pseudo-terminals.
    Terminals {
        /// Where to.
        slot: Slot,
    },
    /// Makes a directory in a slot that is a file system in memory.
    Directory {
        /// Which.
        slot: Slot,
        /// Where.
        path: P,
        /// Permissions.
        mode: u32,
    },
    /// Makes an empty file in a slot that is a file system in memory.
    File {
        /// Which.
        slot: Slot,
        /// Where.
        path: P,
        /// Permissions.
        mode: u32,
    },
    /// Makes a symbolic link in a slot that is a file system in memory.
    Link {
        /// Which.
        slot: Slot,
        /// Where.
        path: P,
        /// What it points to.
        target: P,
    },
    /// Attaches a slot to the view. A slot that is empty, because what it was copied from was
    /// missing, is passed over.
    Attach {
        /// Which.
        slot: Slot,
        /// Where.
        path: P,
    },
    /// Attaches a copy of one entry of a slot to the view; the slot can be used again.
    Cover {
        /// Which.
        slot: Slot,
        /// The entry.
        entry: P,
        /// Where.
        path: P,
    },
    /// Makes what is at `path` in the view, and below, read-only.
    Protect {
        /// Where.
        path: P,
    },
    /// Keeps what is at `path` in the view from being renamed or removed; all else can be done with it.
    /// The last name may be that of a symbolic link, which is then kept itself.
    Pin {
        /// Where.
        path: P,
    },
    /// Makes a slot the root of the view; what was there before is gone, but for the other slots.
    Root {
        /// Which.
        slot: Slot,
    },
}

/// What it means that a path does not exist.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Missing {
    /// The command does not start.
    Fail,
    /// The slot stays empty.
    Skip,
}

/// Names that cannot be made in one directory, by whatever call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Guard {
    /// The directory, as a path of the view.
    pub directory: CString,
    /// The names.
    pub names: Vec<CString>,
}
