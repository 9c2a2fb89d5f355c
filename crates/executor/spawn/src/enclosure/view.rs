//! Making a view of the files, step by step.

use std::ffi::{CStr, c_int};

use super::{
    At, MAX_SLOTS, Missing, Parts, Refusal, Slot, Step,
    mount::{self, NO_DEVICES, NO_EXEC, NO_SETUID, Opened, READ_ONLY},
};
use crate::raw::{self, Digits, Errno};

/// Detached mounts by number, while a view is made.
#[derive(Debug)]
pub(crate) struct View {
    slots: [c_int; MAX_SLOTS],
    /// Slots that lie over the root, where no path leads, because an older kernel copies only from
    /// what is attached.
    parked: [bool; MAX_SLOTS],
    /// There is a namespace of processes to make a view of.
    processes: bool,
}

/// No descriptor.
const EMPTY: c_int = -1;

impl View {
    pub(crate) fn new(processes: bool) -> Self {
        Self {
            slots: [EMPTY; MAX_SLOTS],
            parked: [false; MAX_SLOTS],
            processes,
        }
    }

    /// Takes every step. The descriptors of slots stay open.
    pub(crate) fn make(&mut self, parts: &Parts<'_>) -> Result<(), Refusal> {
        for (index, step) in (0..).zip(parts.steps()) {
            self.take(step).map_err(At::Step(index).refused())?;
        }
        for (slot, parked) in self.slots.iter().zip(self.parked) {
            if parked {
                mount::detach(*slot).map_err(At::Namespaces.refused())?;
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

    fn take(&mut self, step: Step<&CStr>) -> Result<(), Errno> {
        match step {
            Step::Copy {
                path,
                slot,
                missing,
            } => match mount::open_path(path) {
                Err(libc::ENOENT) if missing == Missing::Skip => self.clear(slot),
                place => self.fill(slot, mount::copy(place?.fd())?),
            },
            Step::ReadOnly { slot } => self.if_full(slot, |mount| {
                mount::set_attributes(mount, READ_ONLY | NO_SETUID | NO_DEVICES)
            }),
            Step::ReadOnlyView => {
                let root = mount::open_path(c"/")?;
                mount::set_attributes(root.fd(), READ_ONLY | NO_SETUID | NO_DEVICES)
            }
            Step::Memory { slot, mode, bytes } => self.fill(slot, memory(mode, bytes)?),
            Step::Processes { slot } if self.processes => {
                let set = NO_SETUID | NO_DEVICES | NO_EXEC;
                self.fill(slot, mount::make(c"proc", &[], set)?)
            }
            // There is no other view than the one outside.
            Step::Processes { slot } => {
                let outside = mount::copy(mount::open_path(c"/proc")?.fd())?;
                let set = READ_ONLY | NO_SETUID | NO_DEVICES | NO_EXEC;
                mount::set_attributes(outside.fd(), set)?;
                self.fill(slot, outside)
            }
            Step::Terminals { slot } => {
                let options = [(c"ptmxmode", c"0666"), (c"mode", c"0620")];
                let set = NO_SETUID | NO_EXEC;
                self.fill(slot, mount::make(c"devpts", &options, set)?)
            }
            Step::Directory { slot, path, mode } => {
                mount::make_directory(self.full(slot)?, path, mode)
            }
            Step::File { slot, path, mode } => mount::make_file(self.full(slot)?, path, mode),
            Step::Link { slot, path, target } => mount::make_link(self.full(slot)?, path, target),
            Step::Attach { slot, path } => {
                self.if_full(slot, |mount| {
                    mount::attach(mount, mount::open_path(path)?.fd())
                })?;
                self.settle(slot)
            }
            Step::Cover { slot, entry, path } => {
                let copy = self.copy_entry(slot, entry)?;
                mount::attach(copy.fd(), mount::open_path(path)?.fd())
            }
            Step::Protect { path } => {
                let place = mount::open_path(path)?;
                let copy = mount::copy(place.fd())?;
                mount::set_attributes(copy.fd(), READ_ONLY | NO_SETUID | NO_DEVICES)?;
                mount::attach(copy.fd(), place.fd())
            }
            Step::Pin { path } => {
                let place = mount::open_itself(path)?;
                let copy = mount::copy(place.fd())?;
                mount::attach(copy.fd(), place.fd())
            }
            Step::Root { slot } => {
                let root = self.full(slot)?;
                if !*self.parked_mut(slot)? {
                    mount::attach(root, mount::open_path(c"/")?.fd())?;
                }
                self.settle(slot)?;
                mount::change_root(root)?;
                // What was parked over the old root went with it.
                self.parked = [false; MAX_SLOTS];
                Ok(())
            }
        }
    }

    fn copy_entry(&mut self, slot: Slot, entry: &CStr) -> Result<Opened, Errno> {
        let mount = self.full(slot)?;
        let place = mount::open_entry(mount, entry)?;
        match mount::copy(place.fd()) {
            Err(libc::EINVAL) if !*self.parked_mut(slot)? => {
                mount::attach(mount, mount::open_path(c"/")?.fd())?;
                *self.parked_mut(slot)? = true;
                mount::copy(place.fd())
            }
            copied => copied,
        }
    }

    fn slot_mut(&mut self, slot: Slot) -> Result<&mut c_int, Errno> {
        self.slots
            .get_mut(usize::from(slot.0))
            .ok_or(libc::EOVERFLOW)
    }

    fn parked_mut(&mut self, slot: Slot) -> Result<&mut bool, Errno> {
        self.parked
            .get_mut(usize::from(slot.0))
            .ok_or(libc::EOVERFLOW)
    }

    /// A slot that has a place in the view is not taken away at the end.
    fn settle(&mut self, slot: Slot) -> Result<(), Errno> {
        *self.parked_mut(slot)? = false;
        Ok(())
    }

    fn fill(&mut self, slot: Slot, mount: Opened) -> Result<(), Errno> {
        self.clear(slot)?;
        *self.slot_mut(slot)? = mount.keep();
        Ok(())
    }

    fn clear(&mut self, slot: Slot) -> Result<(), Errno> {
        let old = std::mem::replace(self.slot_mut(slot)?, EMPTY);
        if old != EMPTY {
            raw::close(old)?;
        }
        Ok(())
    }

    fn full(&mut self, slot: Slot) -> Result<c_int, Errno> {
        match *self.slot_mut(slot)? {
            EMPTY => Err(libc::EBADF),
            mount => Ok(mount),
        }
    }

    fn if_full(
        &mut self,
        slot: Slot,
        act: impl FnOnce(c_int) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        match *self.slot_mut(slot)? {
            EMPTY => Ok(()),
            mount => act(mount),
        }
    }
}

fn memory(mode: u32, bytes: u64) -> Result<Opened, Errno> {
    let mode = Digits::octal(u64::from(mode));
    // Nothing at all cannot be asked for: it would mean no limit.
    let bytes = Digits::decimal(bytes.max(1));
    let options = [(c"mode", mode.text()), (c"size", bytes.text())];
    mount::make(c"tmpfs", &options, NO_SETUID | NO_DEVICES)
}
