//! An enclosure as bytes, on its way to a spawner or a helper process.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::{
    Enclosure, Guard, Missing, Namespaces, NetworkNamespace, Slot, Step,
    parts::{DOOR, LANDLOCK, NAMESPACES, NETWORK, PROCESSES, Parts, USER},
};

impl Enclosure {
    /// Encodes everything but the descriptors.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        let namespaces = self.namespaces.as_ref();
        let network = namespaces.and_then(|namespaces| namespaces.network.as_ref());
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        out.u32(
            flag(namespaces.is_some(), NAMESPACES)
                | flag(namespaces.is_some_and(|one| one.user), USER)
                | flag(namespaces.is_some_and(|one| one.processes), PROCESSES)
                | flag(network.is_some(), NETWORK)
                | flag(self.landlock.is_some(), LANDLOCK)
                | flag(network.is_some_and(|one| one.door.is_some()), DOOR),
        );
        let ports = network.map_or(&[][..], |network| &network.listen);
        out.count(ports.len());
        for port in ports {
            out.0.extend_from_slice(&port.to_le_bytes());
        }
        out.count(self.filter.len());
        for instruction in &self.filter {
            // As the kernel reads it, so in this machine's order.
            out.0.extend_from_slice(&instruction.code.to_ne_bytes());
            out.0.push(instruction.if_true);
            out.0.push(instruction.if_false);
            out.0.extend_from_slice(&instruction.k.to_ne_bytes());
        }
        let mut guards = Writer(Vec::new());
        for guard in &self.guards {
            guards.text(&guard.directory);
            guards.count(guard.names.len());
            for name in &guard.names {
                guards.text(name);
            }
        }
        out.count(guards.0.len());
        out.0.append(&mut guards.0);
        for step in namespaces.map_or(&[][..], |namespaces| &namespaces.steps) {
            out.step(step);
        }
        out.0
    }

    /// Returns the descriptors, in the order in which [`decode`](Self::decode) takes them.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let network = self
            .namespaces
            .as_ref()
            .and_then(|namespaces| namespaces.network.as_ref());
        let door = network.and_then(|network| network.door.as_ref());
        self.landlock.iter().chain(door).map(AsFd::as_fd).collect()
    }

    /// Decodes what [`encode`](Self::encode) made. `None`: it did not make this.
    pub fn decode(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Self> {
        let parts = Parts::parse(bytes)?;
        let mut descriptors = descriptors.into_iter();
        let landlock = match parts.has(LANDLOCK) {
            true => Some(descriptors.next()?),
            false => None,
        };
        let door = match parts.has(DOOR) {
            true => Some(descriptors.next()?),
            false => None,
        };
        if descriptors.next().is_some() {
            return None;
        }
        let network = parts.has(NETWORK).then(|| NetworkNamespace {
            listen: parts.ports().collect(),
            door,
        });
        let namespaces = parts.has(NAMESPACES).then(|| Namespaces {
            user: parts.has(USER),
            processes: parts.has(PROCESSES),
            network,
            steps: parts.steps().map(Step::into_owned).collect(),
        });
        let guards = parts.guards().map(|(directory, names)| Guard {
            directory: directory.to_owned(),
            names: names.map(CStr::to_owned).collect(),
        });
        Some(Self {
            namespaces,
            landlock,
            filter: parts.instructions().collect(),
            guards: guards.collect(),
        })
    }
}

impl Step<&CStr> {
    fn into_owned(self) -> Step<CString> {
        let own = CStr::to_owned;
        match self {
            Self::Copy {
                path,
                slot,
                missing,
            } => Step::Copy {
                path: own(path),
                slot,
                missing,
            },
            Self::ReadOnly { slot } => Step::ReadOnly { slot },
            Self::ReadOnlyView => Step::ReadOnlyView,
            Self::Memory { slot, mode, bytes } => Step::Memory { slot, mode, bytes },
            Self::Processes { slot } => Step::Processes { slot },
            Self::Terminals { slot } => Step::Terminals { slot },
            Self::Directory { slot, path, mode } => Step::Directory {
                slot,
                path: own(path),
                mode,
            },
            Self::File { slot, path, mode } => Step::File {
                slot,
                path: own(path),
                mode,
            },
            Self::Link { slot, path, target } => Step::Link {
                slot,
                path: own(path),
                target: own(target),
            },
            Self::Attach { slot, path } => Step::Attach {
                slot,
                path: own(path),
            },
            Self::Cover { slot, entry, path } => Step::Cover {
                slot,
                entry: own(entry),
                path: own(path),
            },
            Self::Protect { path } => Step::Protect { path: own(path) },
            Self::Pin { path } => Step::Pin { path: own(path) },
            Self::Root { slot } => Step::Root { slot },
        }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn count(&mut self, number: usize) {
        // What does not fit makes a frame that is too long, which is refused before it is sent.
        self.u32(u32::try_from(number).unwrap_or(u32::MAX));
    }

    fn text(&mut self, text: &CStr) {
        self.0.extend_from_slice(text.to_bytes_with_nul());
    }

    fn op(&mut self, op: u8, slot: Slot) {
        self.0.push(op);
        self.0.extend_from_slice(&slot.0.to_le_bytes());
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Copy {
                path,
                slot,
                missing,
            } => {
                self.op(0, *slot);
                self.0.push(u8::from(*missing == Missing::Skip));
                self.text(path);
            }
            Step::ReadOnly { slot } => self.op(1, *slot),
            Step::ReadOnlyView => self.op(2, Slot(0)),
            Step::Memory { slot, mode, bytes } => {
                self.op(3, *slot);
                self.u32(*mode);
                self.0.extend_from_slice(&bytes.to_le_bytes());
            }
            Step::Processes { slot } => self.op(4, *slot),
            Step::Terminals { slot } => self.op(5, *slot),
            Step::Directory { slot, path, mode } => {
                self.op(6, *slot);
                self.u32(*mode);
                self.text(path);
            }
            Step::File { slot, path, mode } => {
                self.op(7, *slot);
                self.u32(*mode);
                self.text(path);
            }
            Step::Link { slot, path, target } => {
                self.op(8, *slot);
                self.text(path);
                self.text(target);
            }
            Step::Attach { slot, path } => {
                self.op(9, *slot);
                self.text(path);
            }
            Step::Cover { slot, entry, path } => {
                self.op(10, *slot);
                self.text(entry);
                self.text(path);
            }
            Step::Protect { path } => {
                self.op(11, Slot(0));
                self.text(path);
            }
            Step::Root { slot } => self.op(12, *slot),
            Step::Pin { path } => {
                self.op(13, Slot(0));
                self.text(path);
            }
        }
    }
}
