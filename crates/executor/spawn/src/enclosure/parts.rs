//! An encoded enclosure, read where it lies: nothing is allocated.

use std::ffi::CStr;

use super::{Instruction, Missing, Slot, Step};

/// An encoded enclosure that was checked: every part can be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'a> {
    flags: u32,
    ports: &'a [u8],
    filter: &'a [u8],
    guards: &'a [u8],
    steps: &'a [u8],
}

/// The part of an enclosure that is about namespaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamespaceParts {
    pub(crate) user: bool,
    pub(crate) processes: bool,
    pub(crate) network: bool,
}

impl<'a> Parts<'a> {
    /// Checks all of it. Costs one pass over the bytes.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let parts = Self::split(bytes)?;
        let mut guards = Reader(parts.guards);
        while !guards.0.is_empty() {
            guards.guard()?;
        }
        let mut steps = Reader(parts.steps);
        while !steps.0.is_empty() {
            steps.step()?;
        }
        let needs_namespaces = USER | PROCESSES | NETWORK | DOOR;
        let orphaned = parts.flags & NAMESPACES == 0
            && (parts.flags & needs_namespaces != 0
                || !parts.steps.is_empty()
                || !parts.guards.is_empty());
        (!orphaned).then_some(parts)
    }

    /// Takes bytes apart that were checked before.
    pub(crate) fn split(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
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

    /// Returns whether a ruleset and a door travel beside the bytes.
    pub(crate) fn descriptors(&self) -> (bool, bool) {
        (self.has(LANDLOCK), self.has(DOOR))
    }

    pub(crate) fn namespaces(&self) -> Option<NamespaceParts> {
        self.has(NAMESPACES).then(|| NamespaceParts {
            user: self.has(USER),
            processes: self.has(PROCESSES),
            network: self.has(NETWORK),
        })
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = u16> + 'a {
        let pairs = self.ports.chunks_exact(2);
        pairs.map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
    }

    /// Returns the program as the kernel reads it.
    pub(crate) fn filter(&self) -> &'a [u8] {
        self.filter
    }

    pub(super) fn instructions(&self) -> impl Iterator<Item = Instruction> + 'a {
        let words = self.filter.chunks_exact(INSTRUCTION_BYTES);
        words.map(|word| Instruction {
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
    pub(crate) fn guards(&self) -> impl Iterator<Item = (&'a CStr, Names<'a>)> + use<'a> {
        let mut reader = Reader(self.guards);
        std::iter::from_fn(move || reader.guard())
    }

    pub(crate) fn steps(&self) -> impl Iterator<Item = Step<&'a CStr>> + use<'a> {
        let mut reader = Reader(self.steps);
        std::iter::from_fn(move || reader.step())
    }
}

/// Names of one guard.
#[derive(Clone, Debug)]
pub(crate) struct Names<'a>(Reader<'a>);

impl<'a> Iterator for Names<'a> {
    type Item = &'a CStr;

    fn next(&mut self) -> Option<&'a CStr> {
        self.0.text()
    }
}

#[derive(Clone, Debug)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
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

    fn guard(&mut self) -> Option<(&'a CStr, Names<'a>)> {
        let directory = self.text()?;
        let count = self.u32()?;
        let start = self.0;
        for _ in 0..count {
            self.text()?;
        }
        let names = start.get(..start.len() - self.0.len())?;
        Some((directory, Names(Reader(names))))
    }

    fn step(&mut self) -> Option<Step<&'a CStr>> {
        let [op] = self.array()?;
        let slot = Slot(u16::from_le_bytes(self.array()?));
        Some(match op {
            0 => {
                let [skip] = self.array()?;
                Step::Copy {
                    slot,
                    missing: if skip == 1 {
                        Missing::Skip
                    } else {
                        Missing::Fail
                    },
                    path: self.text()?,
                }
            }
            1 => Step::ReadOnly { slot },
            2 => Step::ReadOnlyView,
            3 => Step::Memory {
                slot,
                mode: self.u32()?,
                bytes: u64::from_le_bytes(self.array()?),
            },
            4 => Step::Processes { slot },
            5 => Step::Terminals { slot },
            6 => Step::Directory {
                slot,
                mode: self.u32()?,
                path: self.text()?,
            },
            7 => Step::File {
                slot,
                mode: self.u32()?,
                path: self.text()?,
            },
            8 => Step::Link {
                slot,
                path: self.text()?,
                target: self.text()?,
            },
            9 => Step::Attach {
                slot,
                path: self.text()?,
            },
            10 => Step::Cover {
                slot,
                entry: self.text()?,
                path: self.text()?,
            },
            11 => Step::Protect { path: self.text()? },
            12 => Step::Root { slot },
            13 => Step::Pin { path: self.text()? },
            _ => return None,
        })
    }
}

pub(super) const NAMESPACES: u32 = 1;
pub(super) const USER: u32 = 2;
pub(super) const PROCESSES: u32 = 4;
pub(super) const NETWORK: u32 = 8;
pub(super) const LANDLOCK: u32 = 16;
pub(super) const DOOR: u32 = 32;

/// Bytes of one instruction.
const INSTRUCTION_BYTES: usize = 8;
