//! One client, its commands, and the place where they run.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use exec_env::{
    environment::Environment,
    filesystem::{ExecutorFileSystem, FileError},
};
use exec_wire::{path_uri::PathUri, sandbox::Sandbox};
use tokio::sync::{Notify, OwnedMutexGuard, Semaphore};

use super::{
    progress::{LastWords, Speaker},
    tool_answer::Complaint,
    typed_path::PathError,
    workspace::{self, Workspace},
};
use crate::unified::{CallId, Settings, UnifiedExec};

/// Calls of one client that may be under way at once. More is a client that has lost count.
pub(super) const MAX_CALLS: usize = 64;

/// The commands of one client. They end with it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) environment: Environment,
    pub(super) workspace: Arc<Workspace>,
    pub(super) exec: UnifiedExec,
    pub(super) words: Arc<LastWords>,
    pub(super) calls: Semaphore,
    edits: Edits,
    next_call: AtomicU64,
}

impl Session {
    /// Begins a session. Nothing runs yet.
    pub(super) fn new(
        environment: &Environment,
        workspace: &Arc<Workspace>,
        edits: &Edits,
        settings: Settings,
    ) -> Self {
        let words = Arc::new(LastWords::default());
        Self {
            exec: UnifiedExec::new(
                environment.clone(),
                settings,
                workspace.clone(),
                words.clone(),
            ),
            environment: environment.clone(),
            workspace: workspace.clone(),
            words,
            calls: Semaphore::new(MAX_CALLS),
            edits: edits.clone(),
            next_call: AtomicU64::new(1),
        }
    }

    /// Names one more call.
    pub(super) fn next_call(&self) -> CallId {
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        CallId(format!("call-{number}"))
    }

    /// Whether nothing runs here, no call is under way, and no end is left to be shown.
    pub(super) fn is_idle(&self) -> bool {
        self.calls.available_permits() == MAX_CALLS && self.exec.processes().is_empty()
    }

    /// Waits until nobody else changes files.
    pub(super) async fn editing(&self) -> OwnedMutexGuard<()> {
        self.edits.0.clone().lock_owned().await
    }
}

/// Whose turn it is to change files, among all clients of one server. Between the moment a tool reads a
/// file and the moment it writes it nobody else may: of two changes one would be lost.
#[derive(Clone, Debug, Default)]
pub(super) struct Edits(Arc<tokio::sync::Mutex<()>>);

/// Sessions at once. Each may run dozens of commands.
const MAX_SESSIONS: usize = 64;

/// Every session.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    taken: Arc<Mutex<Taken>>,
    /// Told when a place was given back.
    freed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Taken {
    sessions: BTreeMap<u64, Arc<Session>>,
    next: u64,
}

/// Why there is no place for a session. The client may come again.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{MAX_SESSIONS} sessions are open already: end one, or come again later")]
pub(super) struct NoPlace;

impl Places {
    /// Takes a place.
    pub(super) fn take(&self, session: Session) -> Result<Place, NoPlace> {
        let mut taken = self.lock();
        if taken.sessions.len() >= MAX_SESSIONS {
            return Err(NoPlace);
        }
        let (number, session) = (taken.next, Arc::new(session));
        taken.next += 1;
        taken.sessions.insert(number, session.clone());
        Ok(Place {
            places: self.clone(),
            number,
            session,
        })
    }

    /// Whether one more is refused.
    pub(super) fn are_full(&self) -> bool {
        self.lock().sessions.len() >= MAX_SESSIONS
    }

    /// Waits until one more is not refused.
    pub(super) async fn room(&self) {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Registered before looking: what is given back meanwhile is heard of.
            freed.as_mut().enable();
            if !self.are_full() {
                return;
            }
            freed.await;
        }
    }

    /// Lists the sessions.
    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        self.lock().sessions.values().cloned().collect()
    }

    fn give_back(&self, number: u64) {
        self.lock().sessions.remove(&number);
        self.freed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session with its place. Dropping it ends the session's commands.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    number: u64,
    session: Arc<Session>,
}

impl Place {
    /// The session.
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (places, number) = (self.places.clone(), self.number);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            places.give_back(number);
            return;
        };
        // The place is free when nothing runs there any more. Calls that are under way may hold the session
        // for a while; its commands must not wait for them.
        let session = self.session.clone();
        runtime.spawn(async move {
            session.exec.shut_down().await;
            places.give_back(number);
        });
    }
}

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
