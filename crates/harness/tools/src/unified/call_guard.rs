//! A command in the hands of one call.
//!
//! Invariant: a command whose number was told stays in the table until a call has shown its end, it makes
//! room, or it is terminated. One whose number nobody learned ends with the call that started it, unless
//! the settings say otherwise.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_env::process::{OpenError, ProcessNumber, Removed, Session, TableFull};
use exec_wire::id::OutputSeq;
use tokio::time::Instant;

use super::{
    Inner,
    call::{CallId, View},
    give_up,
    output_buffers::PutBack,
    process::{About, ProcessSummary, Shared, UnifiedExecProcess},
    settings::Abandoned,
    transcript::ToolOutput,
};

/// A command that nobody else looks at meanwhile.
#[derive(Debug)]
pub(super) struct Held<'a> {
    inner: &'a Inner,
    process: Arc<UnifiedExecProcess>,
    session: Option<Session>,
    number: Number,
}

/// Whether the agent knows the number of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Number {
    Told,
    Untold,
}

impl<'a> Held<'a> {
    /// Takes a command that the agent knows.
    pub(super) fn open(inner: &'a Inner, number: ProcessNumber) -> Result<Self, OpenError> {
        let session = inner.table.open(number)?;
        let process = inner.lock().get(&number).cloned();
        Ok(Self {
            inner,
            process: process.ok_or(OpenError::Unknown(number))?,
            session: Some(session),
            number: Number::Told,
        })
    }

    /// Keeps a command that has just started. Another one may end for it.
    pub(super) fn keep(
        inner: &'a Inner,
        allocated: exec_env::process::Allocated,
        process: Arc<UnifiedExecProcess>,
    ) -> Result<Self, TableFull> {
        let number = allocated.number;
        inner.lock().insert(number, Arc::clone(&process));
        let kept = inner.table.keep(allocated, &process.process, OutputSeq(0));
        match kept {
            Ok(None) => {}
            Ok(Some(Removed { number, .. })) => {
                inner.departed.add_removed(number);
                let removed = inner.lock().remove(&number);
                removed.map(|removed| tokio::spawn(give_up(removed)));
            }
            Err(full) => {
                inner.lock().remove(&number);
                return Err(full);
            }
        }
        Ok(Self {
            inner,
            process,
            // Nobody else knows the number yet.
            session: inner.table.open(number).ok(),
            number: Number::Untold,
        })
    }

    /// Returns the command.
    pub(super) fn process(&self) -> &Arc<UnifiedExecProcess> {
        &self.process
    }

    /// Shows what no call has shown. A command that is over is forgotten with it, unless the answer turns
    /// out not to be received.
    pub(super) fn show(mut self, show: &Show<'_>) -> ToolOutput {
        let (about, shared) = (&self.process.about, &self.process.shared);
        let output = show.output(about, shared);
        self.number = Number::Told;
        if output.running.is_none() {
            let (about, shared) = (about.clone(), Arc::clone(shared));
            self.inner.departed.add(about, shared);
            self.forget();
        }
        output
    }

    /// Ends the command, and has its end told.
    pub(super) fn give_up(mut self) {
        self.end();
        self.number = Number::Told;
    }

    fn end(&mut self) {
        self.forget();
        // Without a runtime, letting go of the handle kills it as well.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(give_up(Arc::clone(&self.process)));
        }
    }

    fn forget(&mut self) {
        self.inner.lock().remove(&self.process.about.number);
        if let Some(session) = self.session.take() {
            session.forget();
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let ends = self.inner.settings.abandoned == Abandoned::Ends;
        if self.number == Number::Untold && ends {
            self.end();
        }
    }
}

/// What a call wants to show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Show<'a> {
    /// The call.
    pub(super) call: &'a CallId,
    /// When it began.
    pub(super) began: Instant,
    pub(super) view: View,
    pub(super) tokens: usize,
}

impl Show<'_> {
    /// Takes what no call has shown of a command.
    pub(super) fn output(&self, about: &About, shared: &Shared) -> ToolOutput {
        let mut gathered = shared.lock();
        ToolOutput {
            wall_time: self.began.elapsed(),
            transcript: gathered.take(self.call, self.view, self.tokens),
            running: (!gathered.over).then_some(about.number),
            exit: gathered.exit.clone(),
            failure: gathered.failure.clone(),
        }
    }
}

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
