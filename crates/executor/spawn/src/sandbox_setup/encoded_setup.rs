//! The byte encoding of a sandbox set-up, as sent to a spawner or an fs worker. Init and the child
//! read it in place, without allocating.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::{
    FilterInstruction, MissingPath, MountSlot, MountStep, NameGuard, NamespaceSetup,
    NetworkNamespace, SandboxSetup,
};

/// An encoded sandbox set-up that was checked, so that every part can be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodedSetup<'a> {
    flags: u32,
    ports: &'a [u8],
    filter: &'a [u8],
    guards: &'a [u8],
    steps: &'a [u8],
}

/// Which namespaces are new.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamespaceFlags {
    pub(crate) user: bool,
    pub(crate) processes: bool,
    pub(crate) network: bool,
}

impl<'a> EncodedSetup<'a> {
    /// Checks the whole encoding in one pass over the bytes.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let parts = Self::from_checked(bytes)?;
        let mut guards = SetupReader(parts.guards);
        while !guards.0.is_empty() {
            guards.guard()?;
        }
        let mut steps = SetupReader(parts.steps);
        while !steps.0.is_empty() {
            steps.step()?;
        }
        let needs_namespaces = FLAG_USER | FLAG_PROCESSES | FLAG_NETWORK | FLAG_LISTENER_SOCKET;
        let orphaned = parts.flags & FLAG_NAMESPACES == 0
            && (parts.flags & needs_namespaces != 0
                || !parts.steps.is_empty()
                || !parts.guards.is_empty());
        (!orphaned).then_some(parts)
    }

    /// Reads an encoding that was checked before.
    pub(crate) fn from_checked(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = SetupReader(bytes);
        let flags = reader.u32()?;
        let ports = reader.u32()? as usize;
        let ports = reader.bytes(ports.checked_mul(2)?)?;
        let filter = reader.u32()? as usize;
        let filter = reader.bytes(filter.checked_mul(INSTRUCTION_BYTES)?)?;
        let guards = reader.u32()? as usize;
        let guards = reader.bytes(guards)?;
        Some(Self {
            flags,
            ports,
            filter,
            guards,
            steps: reader.0,
        })
    }

    pub(super) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether a ruleset and a listener socket are sent along.
    pub(crate) fn descriptors(&self) -> (bool, bool) {
        (self.has(FLAG_LANDLOCK), self.has(FLAG_LISTENER_SOCKET))
    }

    pub(crate) fn namespaces(&self) -> Option<NamespaceFlags> {
        self.has(FLAG_NAMESPACES).then(|| NamespaceFlags {
            user: self.has(FLAG_USER),
            processes: self.has(FLAG_PROCESSES),
            network: self.has(FLAG_NETWORK),
        })
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = u16> + 'a {
        let pairs = self.ports.chunks_exact(2);
        pairs.map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
    }

    /// Returns the seccomp program in the kernel's layout.
    pub(crate) fn filter(&self) -> &'a [u8] {
        self.filter
    }

    pub(super) fn instructions(&self) -> impl Iterator<Item = FilterInstruction> + 'a {
        let words = self.filter.chunks_exact(INSTRUCTION_BYTES);
        words.map(|word| FilterInstruction {
            code: u16::from_ne_bytes([word[0], word[1]]),
            if_true: word[2],
            if_false: word[3],
            k: u32::from_ne_bytes([word[4], word[5], word[6], word[7]]),
        })
    }

    pub(crate) fn has_guards(&self) -> bool {
        !self.guards.is_empty()
    }

    /// Returns each guarded directory and its names.
    pub(crate) fn guards(&self) -> impl Iterator<Item = (&'a CStr, GuardNames<'a>)> + use<'a> {
        let mut reader = SetupReader(self.guards);
        std::iter::from_fn(move || reader.guard())
    }

    pub(crate) fn steps(&self) -> impl Iterator<Item = MountStep<&'a CStr>> + use<'a> {
        let mut reader = SetupReader(self.steps);
        std::iter::from_fn(move || reader.step())
    }
}

/// The names of one guard.
#[derive(Clone, Debug)]
pub(crate) struct GuardNames<'a>(SetupReader<'a>);

impl<'a> Iterator for GuardNames<'a> {
    type Item = &'a CStr;

    fn next(&mut self) -> Option<&'a CStr> {
        self.0.text()
    }
}

#[derive(Clone, Debug)]
struct SetupReader<'a>(&'a [u8]);

impl<'a> SetupReader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'a CStr> {
        let text = CStr::from_bytes_until_nul(self.0).ok()?;
        self.0 = self.0.get(text.to_bytes_with_nul().len()..)?;
        Some(text)
    }

    fn guard(&mut self) -> Option<(&'a CStr, GuardNames<'a>)> {
        let directory = self.text()?;
        let count = self.u32()?;
        let start = self.0;
        for _ in 0..count {
            self.text()?;
        }
        let names = start.get(..start.len() - self.0.len())?;
        Some((directory, GuardNames(SetupReader(names))))
    }

    fn step(&mut self) -> Option<MountStep<&'a CStr>> {
        let [op] = self.array()?;
        let slot = MountSlot(u16::from_le_bytes(self.array()?));
        Some(match op {
            0 => {
                let [skip] = self.array()?;
                MountStep::Copy {
                    slot,
                    missing: if skip == 1 {
                        MissingPath::Skip
                    } else {
                        MissingPath::Fail
                    },
                    path: self.text()?,
                }
            }
            1 => MountStep::ReadOnly { slot },
            2 => MountStep::ReadOnlyView,
            3 => MountStep::Memory {
                slot,
                mode: self.u32()?,
                bytes: u64::from_le_bytes(self.array()?),
            },
            4 => MountStep::Processes { slot },
            5 => MountStep::Terminals { slot },
            6 => MountStep::Directory {
                slot,
                mode: self.u32()?,
                path: self.text()?,
            },
            7 => MountStep::File {
                slot,
                mode: self.u32()?,
                path: self.text()?,
            },
            8 => MountStep::Link {
                slot,
                path: self.text()?,
                target: self.text()?,
            },
            9 => MountStep::Attach {
                slot,
                path: self.text()?,
            },
            10 => MountStep::Cover {
                slot,
                entry: self.text()?,
                path: self.text()?,
            },
            11 => MountStep::Protect { path: self.text()? },
            12 => MountStep::Root { slot },
            13 => MountStep::Pin { path: self.text()? },
            _ => return None,
        })
    }
}

pub(super) const FLAG_NAMESPACES: u32 = 1;
pub(super) const FLAG_USER: u32 = 2;
pub(super) const FLAG_PROCESSES: u32 = 4;
pub(super) const FLAG_NETWORK: u32 = 8;
pub(super) const FLAG_LANDLOCK: u32 = 16;
pub(super) const FLAG_LISTENER_SOCKET: u32 = 32;

/// Size of one seccomp instruction.
const INSTRUCTION_BYTES: usize = 8;

impl SandboxSetup {
    /// Encodes everything except the descriptors.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = SetupWriter(Vec::new());
        let namespaces = self.namespaces.as_ref();
        let network = namespaces.and_then(|namespaces| namespaces.network.as_ref());
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        out.u32(
            flag(namespaces.is_some(), FLAG_NAMESPACES)
                | flag(namespaces.is_some_and(|one| one.user), FLAG_USER)
                | flag(namespaces.is_some_and(|one| one.processes), FLAG_PROCESSES)
                | flag(network.is_some(), FLAG_NETWORK)
                | flag(self.landlock.is_some(), FLAG_LANDLOCK)
                | flag(
                    network.is_some_and(|one| one.listener_socket.is_some()),
                    FLAG_LISTENER_SOCKET,
                ),
        );
        let ports = network.map_or(&[][..], |network| &network.listen);
        out.count(ports.len());
        for port in ports {
            out.0.extend_from_slice(&port.to_le_bytes());
        }
        out.count(self.filter.len());
        for instruction in &self.filter {
            // In the kernel's layout, hence in native byte order.
            out.0.extend_from_slice(&instruction.code.to_ne_bytes());
            out.0.push(instruction.if_true);
            out.0.push(instruction.if_false);
            out.0.extend_from_slice(&instruction.k.to_ne_bytes());
        }
        let mut guards = SetupWriter(Vec::new());
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
        let listener_socket = network.and_then(|network| network.listener_socket.as_ref());
        self.landlock
            .iter()
            .chain(listener_socket)
            .map(AsFd::as_fd)
            .collect()
    }

    /// Decodes the result of [`encode`](Self::encode). `None`: the bytes are not a valid encoding.
    pub fn decode(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Self> {
        let parts = EncodedSetup::parse(bytes)?;
        let mut descriptors = descriptors.into_iter();
        let landlock = match parts.has(FLAG_LANDLOCK) {
            true => Some(descriptors.next()?),
            false => None,
        };
        let listener_socket = match parts.has(FLAG_LISTENER_SOCKET) {
            true => Some(descriptors.next()?),
            false => None,
        };
        if descriptors.next().is_some() {
            return None;
        }
        let network = parts.has(FLAG_NETWORK).then(|| NetworkNamespace {
            listen: parts.ports().collect(),
            listener_socket,
        });
        let namespaces = parts.has(FLAG_NAMESPACES).then(|| NamespaceSetup {
            user: parts.has(FLAG_USER),
            processes: parts.has(FLAG_PROCESSES),
            network,
            steps: parts.steps().map(MountStep::into_owned).collect(),
        });
        let guards = parts.guards().map(|(directory, names)| NameGuard {
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

impl MountStep<&CStr> {
    fn into_owned(self) -> MountStep<CString> {
        let own = CStr::to_owned;
        match self {
            Self::Copy {
                path,
                slot,
                missing,
            } => MountStep::Copy {
                path: own(path),
                slot,
                missing,
            },
            Self::ReadOnly { slot } => MountStep::ReadOnly { slot },
            Self::ReadOnlyView => MountStep::ReadOnlyView,
            Self::Memory { slot, mode, bytes } => MountStep::Memory { slot, mode, bytes },
            Self::Processes { slot } => MountStep::Processes { slot },
            Self::Terminals { slot } => MountStep::Terminals { slot },
            Self::Directory { slot, path, mode } => MountStep::Directory {
                slot,
                path: own(path),
                mode,
            },
            Self::File { slot, path, mode } => MountStep::File {
                slot,
                path: own(path),
                mode,
            },
            Self::Link { slot, path, target } => MountStep::Link {
                slot,
                path: own(path),
                target: own(target),
            },
            Self::Attach { slot, path } => MountStep::Attach {
                slot,
                path: own(path),
            },
            Self::Cover { slot, entry, path } => MountStep::Cover {
                slot,
                entry: own(entry),
                path: own(path),
            },
            Self::Protect { path } => MountStep::Protect { path: own(path) },
            Self::Pin { path } => MountStep::Pin { path: own(path) },
            Self::Root { slot } => MountStep::Root { slot },
        }
    }
}

struct SetupWriter(Vec<u8>);

impl SetupWriter {
    fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn count(&mut self, number: usize) {
        // A count that does not fit makes the frame too long, which is rejected before it is sent.
        self.u32(u32::try_from(number).unwrap_or(u32::MAX));
    }

    fn text(&mut self, text: &CStr) {
        self.0.extend_from_slice(text.to_bytes_with_nul());
    }

    fn op(&mut self, op: u8, slot: MountSlot) {
        self.0.push(op);
        self.0.extend_from_slice(&slot.0.to_le_bytes());
    }

    fn step(&mut self, step: &MountStep) {
        match step {
            MountStep::Copy {
                path,
                slot,
                missing,
            } => {
                self.op(0, *slot);
                self.0.push(u8::from(*missing == MissingPath::Skip));
                self.text(path);
            }
            MountStep::ReadOnly { slot } => self.op(1, *slot),
            MountStep::ReadOnlyView => self.op(2, MountSlot(0)),
            MountStep::Memory { slot, mode, bytes } => {
                self.op(3, *slot);
                self.u32(*mode);
                self.0.extend_from_slice(&bytes.to_le_bytes());
            }
            MountStep::Processes { slot } => self.op(4, *slot),
            MountStep::Terminals { slot } => self.op(5, *slot),
            MountStep::Directory { slot, path, mode } => {
                self.op(6, *slot);
                self.u32(*mode);
                self.text(path);
            }
            MountStep::File { slot, path, mode } => {
                self.op(7, *slot);
                self.u32(*mode);
                self.text(path);
            }
            MountStep::Link { slot, path, target } => {
                self.op(8, *slot);
                self.text(path);
                self.text(target);
            }
            MountStep::Attach { slot, path } => {
                self.op(9, *slot);
                self.text(path);
            }
            MountStep::Cover { slot, entry, path } => {
                self.op(10, *slot);
                self.text(entry);
                self.text(path);
            }
            MountStep::Protect { path } => {
                self.op(11, MountSlot(0));
                self.text(path);
            }
            MountStep::Root { slot } => self.op(12, *slot),
            MountStep::Pin { path } => {
                self.op(13, MountSlot(0));
                self.text(path);
            }
        }
    }
}
