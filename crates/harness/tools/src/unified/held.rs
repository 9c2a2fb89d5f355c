//! A command in the hands of one call.
//!
//! Invariant: a command whose number was told stays in the table until a call has shown its end, it makes
//! room, or it is terminated. One whose number nobody learned ends with the call that started it, unless
//! the settings say otherwise.

use std::sync::Arc;

use exec_env::process::{OpenError, ProcessNumber, Removed, Session, TableFull};
use exec_wire::id::OutputSeq;

use super::{
    manager::{Inner, give_up},
    output::ToolOutput,
    process::UnifiedExecProcess,
    settings::Abandoned,
    show::Show,
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
