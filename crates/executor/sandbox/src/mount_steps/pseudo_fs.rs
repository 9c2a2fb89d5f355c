//! Mount steps for `/dev` and `/proc` of a command.

use std::{
    ffi::CString,
    path::{Path, PathBuf},
};

use exec_spawn::sandbox_setup::{MissingPath, MountSlot, MountStep};

/// Pseudo file systems of a view.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PseudoFs {
    /// A new `/dev` with harmless devices. Otherwise the view decides whether the host's is
    /// visible.
    pub(crate) devices: bool,
    /// A new `/proc` with the command's own processes. Otherwise the view decides whether the
    /// host's is visible.
    pub(crate) processes: bool,
    /// User id of the command.
    pub(crate) account: u32,
}

/// Devices that every command may use.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Size limit of shared memory.
const SHARED_MEMORY_BYTES: u64 = 1 << 30;
/// Size limit of `/dev` itself, which contains only names.
const DIRECTORY_BYTES: u64 = 64 << 10;
/// Entries of `/proc` that uid 0 may write without any capability, and that affect the host.
const WRITABLE_BY_ROOT: [&str; 9] = [
    SYSCTL_DIRECTORY,
    "sysrq-trigger",
    "irq",
    "bus",
    "fs",
    "acpi",
    "scsi",
    "driver",
    "dynamic_debug",
];
const SYSCTL_DIRECTORY: &str = "sys";

/// Returns the paths that must be read-only in every new `/proc` of uid 0. Includes `/proc/sys`
/// even if it does not exist here: then protecting it fails, and the command does not start.
pub(crate) fn writable_host_settings() -> impl Iterator<Item = PathBuf> {
    let paths = WRITABLE_BY_ROOT.map(|name| Path::new("/proc").join(name));
    let settings = Path::new("/proc").join(SYSCTL_DIRECTORY);
    paths
        .into_iter()
        .filter(move |path| *path == settings || path.exists())
}

/// Returns the steps that prepare `/dev` while the host's is visible, and those that attach it.
pub(super) fn device_steps(
    slots: &mut impl FnMut() -> MountSlot,
) -> (Vec<MountStep>, Vec<MountStep>) {
    let directory = slots();
    let mut prepare = vec![MountStep::Memory {
        slot: directory,
        mode: 0o755,
        bytes: DIRECTORY_BYTES,
    }];
    let mut attach = Vec::new();
    for name in DEVICES {
        let slot = slots();
        let path = constant_text(&format!("/dev/{name}"));
        prepare.push(MountStep::File {
            slot: directory,
            path: constant_text(name),
            mode: 0o600,
        });
        prepare.push(MountStep::Copy {
            path: path.clone(),
            slot,
            missing: MissingPath::Skip,
        });
        attach.push(MountStep::Attach { slot, path });
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        prepare.push(MountStep::Link {
            slot: directory,
            path: constant_text(name),
            target: constant_text(target),
        });
    }
    let (terminals, memory) = (slots(), slots());
    for name in ["pts", "shm"] {
        prepare.push(MountStep::Directory {
            slot: directory,
            path: constant_text(name),
            mode: 0o755,
        });
    }
    prepare.push(MountStep::Terminals { slot: terminals });
    prepare.push(MountStep::Memory {
        slot: memory,
        mode: 0o1777,
        bytes: SHARED_MEMORY_BYTES,
    });
    prepare.push(MountStep::ReadOnly { slot: directory });
    attach.push(MountStep::Attach {
        slot: terminals,
        path: constant_text("/dev/pts"),
    });
    attach.push(MountStep::Attach {
        slot: memory,
        path: constant_text("/dev/shm"),
    });
    let attach_directory = MountStep::Attach {
        slot: directory,
        path: constant_text("/dev"),
    };
    (
        prepare,
        std::iter::once(attach_directory).chain(attach).collect(),
    )
}

/// Returns the steps that create and attach a `/proc` with the command's own processes.
pub(super) fn proc_steps(slot: MountSlot, account: u32) -> (MountStep, Vec<MountStep>) {
    let mut attach = vec![MountStep::Attach {
        slot,
        path: constant_text("/proc"),
    }];
    if account == 0 {
        attach.extend(writable_host_settings().map(|path| MountStep::Protect {
            path: constant_text(&path.to_string_lossy()),
        }));
    }
    (MountStep::Processes { slot }, attach)
}

pub(super) fn constant_text(constant_text: &str) -> CString {
    // Only constants of this module are converted, which contain no NUL.
    CString::new(constant_text).unwrap_or_default()
}
