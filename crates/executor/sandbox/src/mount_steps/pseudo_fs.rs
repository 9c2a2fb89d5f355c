//! Devices, terminals and processes: what a command finds in `/dev` and `/proc`.

use std::{
    ffi::CString,
    path::{Path, PathBuf},
};

use exec_spawn::enclosure::{Missing, Slot, Step};

/// What the view of a command has beside files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PseudoFs {
    /// A `/dev` with the harmless devices. Without it the host's is there, or none.
    pub(crate) devices: bool,
    /// A `/proc` of the command's own processes. Without it the host's is there, or none.
    pub(crate) processes: bool,
    /// The account that the command runs under.
    pub(crate) account: u32,
}

/// Devices that every command may use.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// What shared memory may hold.
const SHARED_MEMORY_BYTES: u64 = 1 << 30;
/// The directory itself holds names only.
const DIRECTORY_BYTES: u64 = 64 << 10;
/// What uid 0 may write in `/proc` without any capability, and what would then hold for the host.
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

/// Paths in `/proc` that must be read-only in every `/proc` that uid 0 gets. Settings of the kernel
/// are listed even if this host shows none: protecting them then fails, and with it the start.
pub(crate) fn writable_host_settings() -> impl Iterator<Item = PathBuf> {
    let paths = WRITABLE_BY_ROOT.map(|name| Path::new("/proc").join(name));
    let settings = Path::new("/proc").join(SYSCTL_DIRECTORY);
    paths
        .into_iter()
        .filter(move |path| *path == settings || path.exists())
}

/// Steps that prepare `/dev` while the host's is still there, and steps that attach it.
pub(super) fn device_steps(slots: &mut impl FnMut() -> Slot) -> (Vec<Step>, Vec<Step>) {
    let directory = slots();
    let mut prepare = vec![Step::Memory {
        slot: directory,
        mode: 0o755,
        bytes: DIRECTORY_BYTES,
    }];
    let mut attach = Vec::new();
    for name in DEVICES {
        let slot = slots();
        let path = constant_text(&format!("/dev/{name}"));
        prepare.push(Step::File {
            slot: directory,
            path: constant_text(name),
            mode: 0o600,
        });
        prepare.push(Step::Copy {
            path: path.clone(),
            slot,
            missing: Missing::Skip,
        });
        attach.push(Step::Attach { slot, path });
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        prepare.push(Step::Link {
            slot: directory,
            path: constant_text(name),
            target: constant_text(target),
        });
    }
    let (terminals, memory) = (slots(), slots());
    for name in ["pts", "shm"] {
        prepare.push(Step::Directory {
            slot: directory,
            path: constant_text(name),
            mode: 0o755,
        });
    }
    prepare.push(Step::Terminals { slot: terminals });
    prepare.push(Step::Memory {
        slot: memory,
        mode: 0o1777,
        bytes: SHARED_MEMORY_BYTES,
    });
    prepare.push(Step::ReadOnly { slot: directory });
    attach.push(Step::Attach {
        slot: terminals,
        path: constant_text("/dev/pts"),
    });
    attach.push(Step::Attach {
        slot: memory,
        path: constant_text("/dev/shm"),
    });
    let attach_directory = Step::Attach {
        slot: directory,
        path: constant_text("/dev"),
    };
    (
        prepare,
        std::iter::once(attach_directory).chain(attach).collect(),
    )
}

/// Steps that make and attach a `/proc` of the command's own processes.
pub(super) fn proc_steps(slot: Slot, account: u32) -> (Step, Vec<Step>) {
    let mut attach = vec![Step::Attach {
        slot,
        path: constant_text("/proc"),
    }];
    if account == 0 {
        attach.extend(writable_host_settings().map(|path| Step::Protect {
            path: constant_text(&path.to_string_lossy()),
        }));
    }
    (Step::Processes { slot }, attach)
}

pub(super) fn constant_text(constant_text: &str) -> CString {
    // Only names without a NUL come here: constants of this module.
    CString::new(constant_text).unwrap_or_default()
}
