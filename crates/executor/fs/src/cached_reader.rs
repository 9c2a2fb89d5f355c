//! Reads that the kernel can serve from memory, so that callers need not switch threads.
//!
//! Invariant: nothing here waits for a disk, a network or another process. Paths are resolved from
//! the kernel's cache only (`RESOLVE_CACHED`), files are read from the page cache only
//! (`RWF_NOWAIT`), and only on devices that are known to be local. `None` means: use the blocking
//! operation.

use std::{
    collections::BTreeMap,
    io::IoSliceMut,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{PoisonError, RwLock},
};

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{FileMetadata, GetMetadata, ReadFile},
    path_uri::PathUri,
};
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, statfs,
        statx,
    },
    io::{Errno, ReadWriteFlags, pread, preadv2},
};

use crate::{
    BlockFile,
    host_path::{host_error, native_path},
    metadata::from_statx,
};

/// Largest file read whole here. Copying more takes longer than switching threads.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Serves reads from the kernel's memory, and remembers which devices are local.
#[derive(Debug, Default)]
pub struct CachedReader {
    devices: LocalDevices,
}

impl CachedReader {
    /// Learns the device of a path, so that later requests can be served. May block.
    pub fn learn_device(&self, path: &PathUri) {
        if let Ok(path) = native_path(path) {
            self.devices.remember(&path);
        }
    }

    /// Serves `fs/getMetadata`.
    pub fn metadata(&self, get: &GetMetadata) -> Option<Result<FileMetadata, FileError>> {
        if get.follow_symlinks == Some(false) || get.details {
            return None;
        }
        let path = match native_path(&get.path) {
            Ok(path) => path,
            Err(error) => return Some(Err(error)),
        };
        let missing = |errno| Some(Err(host_error("look at", &path, errno)));
        let entry = match resolve(&path, OFlags::PATH | OFlags::NOFOLLOW)? {
            Ok(entry) => entry,
            Err(errno) => return missing(errno),
        };
        let (found, _) = self.local_metadata(&entry)?;
        if FileType::from_raw_mode(found.stx_mode.into()) != FileType::Symlink {
            return Some(Ok(from_statx(&found, false)));
        }
        match resolve(&path, OFlags::PATH)? {
            Ok(target) => Some(Ok(from_statx(&self.local_metadata(&target)?.0, true))),
            Err(errno) => missing(errno),
        }
    }

    /// Serves `fs/readFile` if the file is small.
    pub fn read_file(&self, read: &ReadFile) -> Option<Result<Vec<u8>, FileError>> {
        if read.follow_symlinks == Some(false) {
            return None;
        }
        let path = match native_path(&read.path) {
            Ok(path) => path,
            Err(error) => return Some(Err(error)),
        };
        // Checked before opening, because opening can block on devices that are not local.
        let found = match resolve(&path, OFlags::PATH)? {
            Ok(found) => found,
            Err(errno) => return Some(Err(host_error("open", &path, errno))),
        };
        let (size, medium) = self.small_file(&found)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = resolve(&path, flags)?.ok()?;
        // One byte more than the size, to detect the end. If the name refers to another file by
        // now, that file differs in size or cannot be read at an offset.
        let mut content = vec![0; size + 1];
        let length = read_cached(&file, 0, &mut content, medium)?;
        if length != size {
            return None;
        }
        content.truncate(length);
        Some(Ok(content))
    }

    /// Reads a block if all of it is in memory. Returns its length.
    pub fn read_block(&self, file: &BlockFile, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let (found, medium) = self.local_metadata(file.file())?;
        let length = read_cached(file.file(), offset, buffer, medium)?;
        // A short read is the end of the file, or of the cached part.
        let is_complete = length == buffer.len() || offset + length as u64 >= found.stx_size;
        is_complete.then_some(length)
    }

    /// Returns the metadata of a file on a known local device.
    fn local_metadata(&self, file: impl AsFd) -> Option<(Statx, StorageMedium)> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let fields = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = statx(file, "", flags, fields).ok()?;
        let medium = self
            .devices
            .medium((found.stx_dev_major, found.stx_dev_minor))?;
        Some((found, medium))
    }

    /// Returns the size and medium of a small regular file.
    fn small_file(&self, file: &OwnedFd) -> Option<(usize, StorageMedium)> {
        let (found, medium) = self.local_metadata(file)?;
        let kind = FileType::from_raw_mode(found.stx_mode.into());
        let small = kind == FileType::RegularFile && found.stx_size <= MAX_FILE_BYTES;
        small.then_some((usize::try_from(found.stx_size).ok()?, medium))
    }
}

/// Reads the part of a regular file that is in memory.
fn read_cached(
    file: impl AsFd,
    offset: u64,
    buffer: &mut [u8],
    medium: StorageMedium,
) -> Option<usize> {
    match medium {
        StorageMedium::Memory => pread(file, buffer, offset).ok(),
        StorageMedium::Disk => {
            let mut slices = [IoSliceMut::new(buffer)];
            preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT).ok()
        }
    }
}

/// Opens a path if the kernel resolves it without waiting. Returns no error that may be due to that
/// restriction.
fn resolve(path: &Path, flags: OFlags) -> Option<Result<OwnedFd, Errno>> {
    let flags = flags | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Ok(file) => Some(Ok(file)),
        Err(Errno::NOENT) => Some(Err(Errno::NOENT)),
        Err(_) => None,
    }
}

/// Where a device stores its files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum StorageMedium {
    /// On a disk, behind the page cache.
    Disk,
    /// In memory only.
    Memory,
}

/// Major and minor number.
pub(super) type Device = (u32, u32);

/// Most devices that are remembered.
const MAX_KNOWN_DEVICES: usize = 1024;

/// Local file systems, by the numbers in `linux/magic.h` and their own sources.
const LOCAL_FILE_SYSTEMS: &[(u64, StorageMedium)] = &[
    (0xef53, StorageMedium::Disk),        // ext2, ext3, ext4
    (0x5846_5342, StorageMedium::Disk),   // xfs
    (0x9123_683e, StorageMedium::Disk),   // btrfs
    (0xf2f5_2010, StorageMedium::Disk),   // f2fs
    (0xca45_1a4e, StorageMedium::Disk),   // bcachefs
    (0x2fc1_2fc1, StorageMedium::Disk),   // zfs
    (0x794c_7630, StorageMedium::Disk),   // overlayfs
    (0x0102_1994, StorageMedium::Memory), // tmpfs
    (0x8584_58f6, StorageMedium::Memory), // ramfs
];

/// Devices that are known to be local.
#[derive(Debug, Default)]
pub(super) struct LocalDevices(RwLock<BTreeMap<Device, StorageMedium>>);

impl LocalDevices {
    /// Remembers the device of a path if it is local. May block.
    pub(super) fn remember(&self, path: &Path) {
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
        let local = |(magic, _): &&(u64, StorageMedium)| u64::try_from(kind) == Ok(*magic);
        if let Some((_, medium)) = LOCAL_FILE_SYSTEMS.iter().find(local) {
            let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
            if known.len() < MAX_KNOWN_DEVICES {
                known.insert(device, *medium);
            }
        }
    }

    /// Returns the storage medium of a device, if known.
    pub(super) fn medium(&self, device: Device) -> Option<StorageMedium> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&device).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;
    use crate::{WholeFile, metadata};

    fn uri(path: &Path) -> PathUri {
        PathUri::from_native(path).unwrap()
    }

    fn get(path: &Path) -> GetMetadata {
        GetMetadata {
            path: uri(path),
            follow_symlinks: None,
            details: false,
            sandbox: None,
        }
    }

    fn read(path: &Path) -> ReadFile {
        ReadFile {
            path: uri(path),
            follow_symlinks: None,
            sandbox: None,
        }
    }

    #[test]
    fn cached_answers_equal_blocking_answers() {
        let (cached, dir) = (CachedReader::default(), tempfile::tempdir().unwrap());
        let [file, link, dangling] = ["file", "link", "dangling"].map(|name| dir.path().join(name));
        fs::write(&file, b"content").unwrap();
        symlink(&file, &link).unwrap();
        symlink("nowhere", &dangling).unwrap();
        cached.learn_device(&uri(&file));
        for path in [
            &file,
            &link,
            &dangling,
            &dir.path().join("missing"),
            &dir.path().to_owned(),
        ] {
            let slow = metadata(&get(path));
            if let Some(fast) = cached.metadata(&get(path)) {
                assert_eq!(fast.is_ok(), slow.is_ok());
                assert!(fast.is_err() || fast == slow, "{path:?}");
            }
            let slow = WholeFile::open(&read(path)).and_then(WholeFile::read);
            if let Some(fast) = cached.read_file(&read(path)) {
                assert_eq!(fast.is_ok(), slow.is_ok());
                assert!(fast.is_err() || fast == slow, "{path:?}");
            }
        }
    }

    #[test]
    fn freshly_written_file_is_read_from_memory() {
        // Every kernel with `RESOLVE_CACHED` supports it for the file systems in the list.
        let (cached, dir) = (CachedReader::default(), tempfile::tempdir().unwrap());
        let file = dir.path().join("file");
        fs::write(&file, vec![7; 4096]).unwrap();
        cached.learn_device(&uri(&file));
        let probe = openat2(
            CWD,
            &file,
            OFlags::PATH,
            Mode::empty(),
            ResolveFlags::CACHED,
        );
        let known = probe.is_ok_and(|file| cached.local_metadata(&file).is_some());
        assert_eq!(cached.read_file(&read(&file)).is_some(), known);
        assert_eq!(cached.metadata(&get(&file)).is_some(), known);
    }

    #[test]
    fn large_special_and_remote_files_are_not_answered() {
        let (cached, dir) = (CachedReader::default(), tempfile::tempdir().unwrap());
        let large = dir.path().join("large");
        fs::write(&large, vec![0; 65_537]).unwrap();
        cached.learn_device(&uri(&large));
        assert_eq!(cached.read_file(&read(&large)), None);
        assert_eq!(cached.read_file(&read(dir.path())), None);
        assert_eq!(cached.read_file(&read(Path::new("/proc/self/stat"))), None);
    }
}
