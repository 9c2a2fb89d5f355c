//! The processes of a table, and which of them makes room for another.

use std::{collections::BTreeMap, fmt, num::NonZeroUsize, sync::Arc};

use exec_core::log::Exit;
use exec_wire::id::{OutputSeq, ProcessId};

use crate::process::ExecProcess;

/// A process of one table, as a model names it. Counted from 1; given once.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ProcessNumber(pub u64);

impl fmt::Display for ProcessNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a full table does with one more process, if none of its own has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WhenFull {
    /// Does not take it.
    Refuse,
    /// Gives up the one that nobody has looked at for the longest time.
    GiveUpLeastRecentlyUsed,
}

/// A process that made room for another.
#[derive(Clone, Debug)]
pub struct Removed {
    /// Its number, which names nothing any more.
    pub number: ProcessNumber,
    /// The process. If it runs, dropping the last handle kills its tree.
    pub process: Arc<dyn ExecProcess>,
    /// Its end, if it has ended and that was not told before.
    pub ended: Option<Ended>,
}

/// The end of a process. Told once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ended {
    /// Its number.
    pub number: ProcessNumber,
    /// Its id.
    pub id: ProcessId,
    /// How it ended.
    pub exit: Exit,
}

/// A process of a table.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) process: Arc<dyn ExecProcess>,
    /// The last number that a window has shown.
    pub(super) last: OutputSeq,
    /// A session is open.
    pub(super) busy: bool,
    /// Its end was told.
    pub(super) told: bool,
    /// When it was looked at, counted in looks.
    used: u64,
}

impl Entry {
    /// Returns its end, the first time that it has one.
    pub(super) fn tell_end(&mut self, number: ProcessNumber) -> Option<Ended> {
        if self.told {
            return None;
        }
        let exit = self.process.status().exit?;
        self.told = true;
        let id = self.process.id().clone();
        Some(Ended { number, id, exit })
    }
}

/// The processes by number.
#[derive(Debug)]
pub(super) struct Entries {
    pub(super) capacity: NonZeroUsize,
    pub(super) when_full: WhenFull,
    pub(super) by_number: BTreeMap<ProcessNumber, Entry>,
    /// So many of those looked at last do not make room.
    pub(super) protected: usize,
    looks: u64,
}

impl Entries {
    pub(super) fn new(capacity: NonZeroUsize, when_full: WhenFull) -> Self {
        Self {
            capacity,
            when_full,
            by_number: BTreeMap::new(),
            protected: 0,
            looks: 0,
        }
    }

    /// Adds a process.
    pub(super) fn insert(
        &mut self,
        number: ProcessNumber,
        process: Arc<dyn ExecProcess>,
        last: OutputSeq,
    ) {
        let entry = Entry {
            process,
            last,
            busy: false,
            told: false,
            used: 0,
        };
        self.by_number.insert(number, entry);
        self.touch(number);
    }

    /// Records that somebody looks at a process.
    pub(super) fn touch(&mut self, number: ProcessNumber) {
        self.looks += 1;
        if let Some(entry) = self.by_number.get_mut(&number) {
            entry.used = self.looks;
        }
    }

    /// Tells whether one more fits.
    pub(super) fn has_room(&self) -> bool {
        self.by_number.len() < self.capacity.get()
    }

    /// Returns the process that matters least: one that has ended, or as the policy says. It is never
    /// one that a session is open for, nor one of those that are protected.
    pub(super) fn least(&self) -> Option<ProcessNumber> {
        let mut uses: Vec<u64> = self.by_number.values().map(|entry| entry.used).collect();
        uses.sort_unstable_by(|one, other| other.cmp(one));
        // The least recent of those that stay.
        let protected = self.protected.checked_sub(1).map(|last| uses.get(last));
        let oldest = |ended: bool| {
            let idle = self.by_number.iter().filter(|(_, entry)| {
                let stays =
                    protected.is_some_and(|last| last.is_none_or(|last| entry.used >= *last));
                !entry.busy && !stays
            });
            idle.filter(|(_, entry)| entry.process.status().exit.is_some() == ended)
                .min_by_key(|(_, entry)| entry.used)
                .map(|(number, _)| *number)
        };
        match (oldest(true), self.when_full) {
            (Some(number), _) => Some(number),
            (None, WhenFull::Refuse) => None,
            (None, WhenFull::GiveUpLeastRecentlyUsed) => oldest(false),
        }
    }

    /// Removes the process that matters least.
    pub(super) fn make_room(&mut self) -> Option<Removed> {
        let number = self.least()?;
        let mut entry = self.by_number.remove(&number)?;
        let ended = entry.tell_end(number);
        Some(Removed {
            number,
            process: entry.process,
            ended,
        })
    }
}
