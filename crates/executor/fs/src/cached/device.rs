//! Which devices are of this machine. Learned where waiting is allowed, looked up where it is not.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{PoisonError, RwLock},
};

use rustix::fs::{AtFlags, CWD, StatxFlags, statfs, statx};

/// What a device keeps its files on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Medium {
    /// A disk, with the page cache before it.
    Disk,
    /// Memory alone.
    Memory,
}

/// Major and minor number.
pub(super) type Device = (u32, u32);

/// Devices that are remembered.
const MAX_KNOWN: usize = 1024;

/// File systems of this machine, by the numbers of `linux/magic.h` and of their own sources.
const LOCAL: &[(u64, Medium)] = &[
    (0xef53, Medium::Disk),        // ext2, ext3, ext4
    (0x5846_5342, Medium::Disk),   // xfs
    (0x9123_683e, Medium::Disk),   // btrfs
    (0xf2f5_2010, Medium::Disk),   // f2fs
    (0xca45_1a4e, Medium::Disk),   // bcachefs
    (0x2fc1_2fc1, Medium::Disk),   // zfs
    (0x794c_7630, Medium::Disk),   // overlayfs
    (0x0102_1994, Medium::Memory), // tmpfs
    (0x8584_58f6, Medium::Memory), // ramfs
];

/// The devices that are known to be of this machine.
#[derive(Debug, Default)]
pub(super) struct Devices(RwLock<BTreeMap<Device, Medium>>);

impl Devices {
    /// Remembers the device that a path lies on, if it is of this machine. May wait.
    pub(super) fn note(&self, path: &Path) {
        let Ok(found) = statx(CWD, path, AtFlags::empty(), StatxFlags::TYPE) else {
            return;
        };
        let device = (found.stx_dev_major, found.stx_dev_minor);
        if self.medium(device).is_some() {
            return;
        }
        let Ok(kind) = statfs(path).map(|system| system.f_type) else {
            return;
        };
        let local = |(magic, _): &&(u64, Medium)| u64::try_from(kind) == Ok(*magic);
        if let Some((_, medium)) = LOCAL.iter().find(local) {
            let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
            if known.len() < MAX_KNOWN {
                known.insert(device, *medium);
            }
        }
    }

    /// Returns what a device keeps its files on, if it is known.
    pub(super) fn medium(&self, device: Device) -> Option<Medium> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&device).copied()
    }
}
