//! Commands that are no longer kept: those whose end was shown a short while ago, and those that made room.
//!
//! The answer that showed it may not have been received; then the end is shown once more. No handle of a
//! process is kept here: what a command left behind ends when its end is shown, whoever reads that.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_env::process::ProcessNumber;

use super::{
    buffer::PutBack,
    call::CallId,
    process::{About, ProcessSummary, Shared},
};

/// Commands that are remembered. Each keeps what its last call showed.
const REMEMBERED: usize = 16;

/// Commands that made room, whose numbers are remembered.
const REMOVED: usize = 256;

/// Commands that are no longer kept, the last one behind the others.
#[derive(Debug, Default)]
pub(super) struct Departed {
    gone: Mutex<VecDeque<Gone>>,
    removed: Mutex<VecDeque<ProcessNumber>>,
}

#[derive(Debug)]
struct Gone {
    about: About,
    shared: Arc<Shared>,
    end: End,
}

/// Whether anybody knows how a command ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Shown,
    NotReceived,
}

impl Departed {
    /// Remembers a command whose end is shown now.
    pub(super) fn add(&self, about: About, shared: Arc<Shared>) {
        let mut gone = self.lock();
        if gone.len() >= REMEMBERED {
            // One whose end nobody knows is worth more than one that is only remembered in case.
            let least = gone.iter().position(|gone| gone.end == End::Shown);
            gone.remove(least.unwrap_or(0));
        }
        gone.push_back(Gone {
            about,
            shared,
            end: End::Shown,
        });
    }

    /// Takes note that the answer of this call was not received.
    pub(super) fn put_back(&self, call: &CallId) -> PutBack {
        for gone in self.lock().iter_mut().rev() {
            if gone.shared.lock().put_back(call) == PutBack::Done {
                gone.end = End::NotReceived;
                return PutBack::Done;
            }
        }
        PutBack::NotItsOwn
    }

    /// Returns a command whose end nobody knows. It is to be shown now.
    pub(super) fn take(&self, number: ProcessNumber) -> Option<(About, Arc<Shared>)> {
        let mut gone = self.lock();
        let is_it = |gone: &Gone| gone.about.number == number && gone.end == End::NotReceived;
        let at = gone.iter().position(is_it)?;
        let Gone { about, shared, .. } = gone.remove(at)?;
        Some((about, shared))
    }

    /// Lists the commands whose end nobody knows.
    pub(super) fn not_received(&self) -> Vec<ProcessSummary> {
        let gone = self.lock();
        let unknown = gone.iter().filter(|gone| gone.end == End::NotReceived);
        let summary = |gone: &Gone| gone.about.summary(gone.shared.state.borrow().clone());
        unknown.map(summary).collect()
    }

    /// Remembers that a command made room.
    pub(super) fn add_removed(&self, number: ProcessNumber) {
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        if removed.len() >= REMOVED {
            removed.pop_front();
        }
        removed.push_back(number);
    }

    /// Tells whether a command is known to have made room.
    pub(super) fn made_room(&self, number: ProcessNumber) -> bool {
        let removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        removed.contains(&number)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Gone>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
