//! What a tool works with during one call.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use exec_env::filesystem::{ExecutorFileSystem, FileError};
use exec_wire::{path_uri::PathUri, sandbox::Sandbox};
use tokio::sync::OwnedMutexGuard;

use super::{answer::Complaint, session::Session, typed::PathError, words::Speaker, workspace};
use crate::unified::{CallId, UnifiedExec};

/// One call of a client.
#[derive(Clone, Debug)]
pub(super) struct Work {
    session: Arc<Session>,
    call: CallId,
    patience: Patience,
    /// The command that the call waits for.
    listens_to: Arc<Mutex<Option<Speaker>>>,
}

/// Whether a client learns that a call goes on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Patience {
    /// It is told, and waits.
    Told,
    /// It is not, and may give up.
    NotTold,
}

/// Longest wait of a call whose client does not learn that it goes on: many give up after a minute.
const UNTOLD: Duration = Duration::from_secs(50);

impl Patience {
    /// Returns a wait as far as the client's patience is known to go.
    pub(super) fn at_most(self, wait: Duration) -> Duration {
        match self {
            Self::Told => wait,
            Self::NotTold => wait.min(UNTOLD),
        }
    }
}

impl Work {
    /// Begins a call.
    pub(super) fn new(session: Arc<Session>, patience: Patience) -> Self {
        Self {
            call: session.next_call(),
            session,
            patience,
            listens_to: Arc::default(),
        }
    }

    /// The call's name.
    pub(super) fn call(&self) -> &CallId {
        &self.call
    }

    /// Whether the client learns that the call goes on.
    pub(super) fn patience(&self) -> Patience {
        self.patience
    }

    /// The client's commands.
    pub(super) fn exec(&self) -> &UnifiedExec {
        &self.session.exec
    }

    /// The environment's files.
    pub(super) fn files(&self) -> &(dyn ExecutorFileSystem + 'static) {
        &*self.session.environment.files
    }

    /// What encloses everything.
    pub(super) fn sandbox(&self) -> Option<Box<Sandbox>> {
        self.session.workspace.sandbox()
    }

    /// Waits until nobody else changes files. Held from reading a file to writing it.
    pub(super) async fn editing(&self) -> OwnedMutexGuard<()> {
        self.session.editing().await
    }

    /// Complains that a file could not be changed.
    pub(super) fn not_changed(&self, path: &PathUri, error: &FileError) -> Complaint {
        Complaint(match self.session.workspace.forbids(path) {
            Some(why) => format!("{error}; {why}"),
            None => error.to_string(),
        })
    }

    /// Explains what the sandbox probably refused to a command that failed.
    pub(super) fn explain_denial(&self, output: &str, is_denied: bool) -> Option<String> {
        self.session.workspace.explain_denial(output, is_denied)
    }

    /// What relative paths start from.
    pub(super) fn root(&self) -> &PathUri {
        self.session.workspace.root()
    }

    /// Reads a path as an agent writes it.
    pub(super) fn path(&self, typed: &str) -> Result<PathUri, PathError> {
        self.session.workspace.base().path(typed)
    }

    /// Reads the path of a file that is to be written.
    pub(super) fn file(&self, typed: &str) -> Result<PathUri, PathError> {
        self.session.workspace.base().file(typed)
    }

    /// Writes a path as an agent reads it.
    pub(super) fn show(&self, path: &PathUri) -> String {
        self.session.workspace.show(path)
    }

    /// Writes a path as its host does, from the root on.
    pub(super) fn native(&self, path: &PathUri) -> String {
        workspace::native(path)
    }

    /// Says which command the call waits for.
    pub(super) fn listen_to(&self, speaker: Speaker) {
        let listens_to = self.listens_to.lock();
        *listens_to.unwrap_or_else(PoisonError::into_inner) = Some(speaker);
    }

    /// The last line of the command that the call waits for.
    pub(super) fn last_words(&self) -> Option<String> {
        let speaker = self
            .listens_to
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.session.words.of(speaker.as_ref()?)
    }
}
