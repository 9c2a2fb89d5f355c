//! Builds a mount view step by step. Every path is opened first, and then used by descriptor.

use std::ffi::{CStr, c_int};

use super::{
    EncodedSetup, MAX_MOUNT_SLOTS, MissingPath, MountSlot, MountStep, SetupFailure, StepCode,
};
use crate::raw::{self, Errno, NumberText, OwnedDescriptor, int_arg};

/// Detached mounts by slot number, while a view is built.
#[derive(Debug)]
pub(crate) struct MountView {
    slots: [c_int; MAX_MOUNT_SLOTS],
    /// Slots that are attached over the root, where no path reaches them, because older kernels
    /// clone only attached mounts.
    parked: [bool; MAX_MOUNT_SLOTS],
    /// Whether there is a new pid namespace to mount a procfs of.
    processes: bool,
}

/// Marks an empty slot.
const EMPTY: c_int = -1;

impl MountView {
    pub(crate) fn new(processes: bool) -> Self {
        Self {
            slots: [EMPTY; MAX_MOUNT_SLOTS],
            parked: [false; MAX_MOUNT_SLOTS],
            processes,
        }
    }

    /// Applies every step. The descriptors of slots stay open.
    pub(crate) fn build(&mut self, parts: &EncodedSetup<'_>) -> Result<(), SetupFailure> {
        for (index, step) in (0..).zip(parts.steps()) {
            self.apply_step(step)
                .map_err(StepCode::Step(index).failure())?;
        }
        for (slot, parked) in self.slots.iter().zip(self.parked) {
            if parked {
                detach(*slot).map_err(StepCode::Namespaces.failure())?;
            }
        }
        Ok(())
    }

    /// Closes the descriptors of all slots.
    pub(crate) fn close(&mut self) {
        for slot in &mut self.slots {
            if *slot != EMPTY {
                let _ = raw::close(*slot);
                *slot = EMPTY;
            }
        }
    }

    fn apply_step(&mut self, step: MountStep<&CStr>) -> Result<(), Errno> {
        match step {
            MountStep::Copy {
                path,
                slot,
                missing,
            } => match open_path(path) {
                Err(libc::ENOENT) if missing == MissingPath::Skip => self.clear(slot),
                source => self.fill(slot, clone_mounts(source?.number())?),
            },
            MountStep::ReadOnly { slot } => self.with_filled(slot, |mount| {
                set_attributes(mount, READ_ONLY | NO_SETUID | NO_DEVICES)
            }),
            MountStep::ReadOnlyView => {
                let root = open_path(c"/")?;
                set_attributes(root.number(), READ_ONLY | NO_SETUID | NO_DEVICES)
            }
            MountStep::Memory { slot, mode, bytes } => self.fill(slot, create_tmpfs(mode, bytes)?),
            MountStep::Processes { slot } if self.processes => {
                let set = NO_SETUID | NO_DEVICES | NO_EXEC;
                self.fill(slot, create_filesystem(c"proc", &[], set)?)
            }
            // Without a pid namespace only the outer procfs exists.
            MountStep::Processes { slot } => {
                let outside = clone_mounts(open_path(c"/proc")?.number())?;
                let set = READ_ONLY | NO_SETUID | NO_DEVICES | NO_EXEC;
                set_attributes(outside.number(), set)?;
                self.fill(slot, outside)
            }
            MountStep::Terminals { slot } => {
                let options = [(c"ptmxmode", c"0666"), (c"mode", c"0620")];
                let set = NO_SETUID | NO_EXEC;
                self.fill(slot, create_filesystem(c"devpts", &options, set)?)
            }
            MountStep::Directory { slot, path, mode } => {
                make_directory(self.filled(slot)?, path, mode)
            }
            MountStep::File { slot, path, mode } => make_file(self.filled(slot)?, path, mode),
            MountStep::Link { slot, path, target } => make_link(self.filled(slot)?, path, target),
            MountStep::Attach { slot, path } => {
                self.with_filled(slot, |mount| attach(mount, open_path(path)?.number()))?;
                self.mark_attached(slot)
            }
            MountStep::Cover { slot, entry, path } => {
                let copy = self.copy_entry(slot, entry)?;
                attach(copy.number(), open_path(path)?.number())
            }
            MountStep::Protect { path } => {
                let target = open_path(path)?;
                let copy = clone_mounts(target.number())?;
                set_attributes(copy.number(), READ_ONLY | NO_SETUID | NO_DEVICES)?;
                attach(copy.number(), target.number())
            }
            MountStep::Pin { path } => {
                let target = open_no_follow(path)?;
                let copy = clone_mounts(target.number())?;
                attach(copy.number(), target.number())
            }
            MountStep::Root { slot } => {
                let root = self.filled(slot)?;
                if !*self.parked_mut(slot)? {
                    attach(root, open_path(c"/")?.number())?;
                }
                self.mark_attached(slot)?;
                change_root(root)?;
                // Slots parked over the old root disappeared with it.
                self.parked = [false; MAX_MOUNT_SLOTS];
                Ok(())
            }
        }
    }

    fn copy_entry(&mut self, slot: MountSlot, entry: &CStr) -> Result<OwnedDescriptor, Errno> {
        let mount = self.filled(slot)?;
        let source = open_entry(mount, entry)?;
        match clone_mounts(source.number()) {
            Err(libc::EINVAL) if !*self.parked_mut(slot)? => {
                attach(mount, open_path(c"/")?.number())?;
                *self.parked_mut(slot)? = true;
                clone_mounts(source.number())
            }
            copied => copied,
        }
    }

    fn slot_mut(&mut self, slot: MountSlot) -> Result<&mut c_int, Errno> {
        self.slots
            .get_mut(usize::from(slot.0))
            .ok_or(libc::EOVERFLOW)
    }

    fn parked_mut(&mut self, slot: MountSlot) -> Result<&mut bool, Errno> {
        self.parked
            .get_mut(usize::from(slot.0))
            .ok_or(libc::EOVERFLOW)
    }

    /// Marks a slot as attached, so that it is not detached at the end.
    fn mark_attached(&mut self, slot: MountSlot) -> Result<(), Errno> {
        *self.parked_mut(slot)? = false;
        Ok(())
    }

    fn fill(&mut self, slot: MountSlot, mount: OwnedDescriptor) -> Result<(), Errno> {
        self.clear(slot)?;
        *self.slot_mut(slot)? = mount.into_raw();
        Ok(())
    }

    fn clear(&mut self, slot: MountSlot) -> Result<(), Errno> {
        let old = std::mem::replace(self.slot_mut(slot)?, EMPTY);
        if old != EMPTY {
            raw::close(old)?;
        }
        Ok(())
    }

    fn filled(&mut self, slot: MountSlot) -> Result<c_int, Errno> {
        match *self.slot_mut(slot)? {
            EMPTY => Err(libc::EBADF),
            mount => Ok(mount),
        }
    }

    fn with_filled(
        &mut self,
        slot: MountSlot,
        act: impl FnOnce(c_int) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        match *self.slot_mut(slot)? {
            EMPTY => Ok(()),
            mount => act(mount),
        }
    }
}

fn create_tmpfs(mode: u32, bytes: u64) -> Result<OwnedDescriptor, Errno> {
    let mode = NumberText::octal(u64::from(mode));
    // A size of zero would mean no limit.
    let bytes = NumberText::decimal(bytes.max(1));
    let options = [(c"mode", mode.text()), (c"size", bytes.text())];
    create_filesystem(c"tmpfs", &options, NO_SETUID | NO_DEVICES)
}

/// Mount attributes.
pub(super) const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub(super) const NO_SETUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub(super) const NO_DEVICES: u64 = libc::MOUNT_ATTR_NODEV;
pub(super) const NO_EXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// Stops mount events from propagating in either direction.
pub(crate) fn make_mounts_private() -> Result<(), Errno> {
    let flags = usize::try_from(libc::MS_REC | libc::MS_PRIVATE).unwrap_or(0);
    let root = c"/".as_ptr() as usize;
    raw::syscall(libc::SYS_mount, [0, root, 0, flags]).map(|_| ())
}

/// Opens the outer procfs, which shows pids as the supervisor sees them.
pub(crate) fn open_outer_proc() -> Result<c_int, Errno> {
    OwnedDescriptor::open_path(libc::AT_FDCWD, c"/proc", libc::O_DIRECTORY, 0)
        .map(OwnedDescriptor::into_raw)
}

/// Opens a path of the view. Fails if any component is a symbolic link.
pub(super) fn open_path(path: &CStr) -> Result<OwnedDescriptor, Errno> {
    open_within(libc::AT_FDCWD, path, 0, 0)
}

/// Opens a path of the view. A symbolic link as last component is opened itself; any other link is
/// an error.
pub(super) fn open_no_follow(path: &CStr) -> Result<OwnedDescriptor, Errno> {
    open_within(libc::AT_FDCWD, path, libc::O_NOFOLLOW, 0)
}

/// Opens an entry at or below `directory`, without following symbolic links.
pub(super) fn open_entry(directory: c_int, path: &CStr) -> Result<OwnedDescriptor, Errno> {
    open_within(directory, path, 0, libc::RESOLVE_BENEATH)
}

fn open_within(
    directory: c_int,
    path: &CStr,
    flags: c_int,
    resolve: u64,
) -> Result<OwnedDescriptor, Errno> {
    let resolve = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS | resolve;
    OwnedDescriptor::open_path(directory, path, flags, resolve)
}

/// Clones the mounts at and below an open path. Always recursive, because mounts below may be
/// locked.
pub(super) fn clone_mounts(source: c_int) -> Result<OwnedDescriptor, Errno> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    let at = (libc::AT_EMPTY_PATH | libc::AT_RECURSIVE).unsigned_abs();
    let args = [
        int_arg(source),
        c"".as_ptr() as usize,
        (flags | at) as usize,
    ];
    raw::syscall(libc::SYS_open_tree, args).map(OwnedDescriptor::from_call)
}

/// Attaches a mount over an open path.
pub(super) fn attach(mount: c_int, target: c_int) -> Result<(), Errno> {
    let empty = c"".as_ptr() as usize;
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    let args = [
        int_arg(mount),
        empty,
        int_arg(target),
        empty,
        flags as usize,
    ];
    raw::syscall(libc::SYS_move_mount, args).map(|_| ())
}

/// Sets attributes of the mounts at and below an open path.
pub(super) fn set_attributes(mount: c_int, set: u64) -> Result<(), Errno> {
    let attributes = [set, 0, 0, 0_u64];
    let args = [
        int_arg(mount),
        c"".as_ptr() as usize,
        int_arg(libc::AT_EMPTY_PATH | libc::AT_RECURSIVE),
        attributes.as_ptr() as usize,
        size_of_val(&attributes),
    ];
    raw::syscall(libc::SYS_mount_setattr, args).map(|_| ())
}

/// Creates a detached file system.
pub(super) fn create_filesystem(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    set: u64,
) -> Result<OwnedDescriptor, Errno> {
    let args = [kind.as_ptr() as usize, libc::FSOPEN_CLOEXEC as usize];
    let context = raw::syscall(libc::SYS_fsopen, args).map(OwnedDescriptor::from_call)?;
    for (name, value) in options {
        let (name, value) = (name.as_ptr() as usize, value.as_ptr() as usize);
        configure_filesystem(context.number(), libc::FSCONFIG_SET_STRING, name, value)?;
    }
    configure_filesystem(context.number(), libc::FSCONFIG_CMD_CREATE, 0, 0)?;
    let attributes = usize::try_from(set).unwrap_or(0);
    let flags = libc::FSMOUNT_CLOEXEC as usize;
    let args = [int_arg(context.number()), flags, attributes];
    raw::syscall(libc::SYS_fsmount, args).map(OwnedDescriptor::from_call)
}

fn configure_filesystem(
    context: c_int,
    command: u32,
    name: usize,
    value: usize,
) -> Result<(), Errno> {
    let args = [int_arg(context), command as usize, name, value, 0];
    raw::syscall(libc::SYS_fsconfig, args).map(|_| ())
}

/// Makes an attached mount the root and removes the old root.
pub(super) fn change_root(root: c_int) -> Result<(), Errno> {
    change_directory(root)?;
    let here = c".".as_ptr() as usize;
    // The old root ends up over the new one, and is detached from there.
    raw::syscall(libc::SYS_pivot_root, [here, here])?;
    detach_here()?;
    raw::chdir(c"/".as_ptr()).map(|_| ())
}

/// Detaches an attached mount.
pub(super) fn detach(mount: c_int) -> Result<(), Errno> {
    change_directory(mount)?;
    detach_here()?;
    raw::chdir(c"/".as_ptr()).map(|_| ())
}

fn change_directory(directory: c_int) -> Result<(), Errno> {
    raw::syscall(libc::SYS_fchdir, [int_arg(directory)]).map(|_| ())
}

fn detach_here() -> Result<(), Errno> {
    let args = [c".".as_ptr() as usize, int_arg(libc::MNT_DETACH)];
    raw::syscall(libc::SYS_umount2, args).map(|_| ())
}

/// Creates a directory with exactly this mode; the umask is zero here.
pub(super) fn make_directory(at: c_int, path: &CStr, mode: u32) -> Result<(), Errno> {
    let args = [int_arg(at), path.as_ptr() as usize, mode as usize];
    raw::syscall(libc::SYS_mkdirat, args).map(|_| ())
}

/// Creates an empty file.
pub(super) fn make_file(at: c_int, path: &CStr, mode: u32) -> Result<(), Errno> {
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let path = path.as_ptr() as usize;
    let args = [int_arg(at), path, int_arg(flags), mode as usize];
    raw::syscall(libc::SYS_openat, args).map(|fd| drop(OwnedDescriptor::from_call(fd)))
}

/// Creates a symbolic link.
pub(super) fn make_link(at: c_int, path: &CStr, target: &CStr) -> Result<(), Errno> {
    let (path, target) = (path.as_ptr() as usize, target.as_ptr() as usize);
    raw::syscall(libc::SYS_symlinkat, [target, int_arg(at), path]).map(|_| ())
}
