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
    progress::{ProgressLines, ProgressSource},
    tool_answer::ToolError,
    typed_path::TypedPathError,
    workspace::{self, Workspace},
};
use crate::unified::{CallId, Settings, UnifiedExec};

/// Calls of one client that may be under way at once. More is a client that has lost count.
pub(super) const MAX_CALLS: usize = 64;

/// The commands of one client. They end with it.
#[derive(Debug)]
pub(super) struct McpSession {
    pub(super) environment: Environment,
    pub(super) workspace: Arc<Workspace>,
    pub(super) exec: UnifiedExec,
    pub(super) progress_lines: Arc<ProgressLines>,
    pub(super) calls: Semaphore,
    edits: EditLock,
    next_call: AtomicU64,
}

impl McpSession {
    /// Begins a session. Nothing runs yet.
    pub(super) fn new(
        environment: &Environment,
        workspace: &Arc<Workspace>,
        edits: &EditLock,
        settings: Settings,
    ) -> Self {
        let progress_lines = Arc::new(ProgressLines::default());
        Self {
            exec: UnifiedExec::new(
                environment.clone(),
                settings,
                workspace.clone(),
                progress_lines.clone(),
            ),
            environment: environment.clone(),
            workspace: workspace.clone(),
            progress_lines,
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
    pub(super) async fn lock_edits(&self) -> OwnedMutexGuard<()> {
        self.edits.0.clone().lock_owned().await
    }
}

/// Whose turn it is to change files, among all clients of one server. Between the moment a tool reads a
/// file and the moment it writes it nobody else may: of two changes one would be lost.
#[derive(Clone, Debug, Default)]
pub(super) struct EditLock(Arc<tokio::sync::Mutex<()>>);

/// Sessions at once. Each may run dozens of commands.
const MAX_SESSIONS: usize = 64;

/// Every session.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionRegistry {
    sessions_table: Arc<Mutex<SessionTable>>,
    /// Told when a place was given back.
    slot_freed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct SessionTable {
    sessions: BTreeMap<u64, Arc<McpSession>>,
    next: u64,
}

/// Why there is no place for a session. The client may come again.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{MAX_SESSIONS} sessions are open already: end one, or come again later")]
pub(super) struct TooManySessions;

impl SessionRegistry {
    /// Takes a place.
    pub(super) fn register(&self, session: McpSession) -> Result<SessionSlot, TooManySessions> {
        let mut sessions_table = self.lock();
        if sessions_table.sessions.len() >= MAX_SESSIONS {
            return Err(TooManySessions);
        }
        let (number, session) = (sessions_table.next, Arc::new(session));
        sessions_table.next += 1;
        sessions_table.sessions.insert(number, session.clone());
        Ok(SessionSlot {
            registry: self.clone(),
            number,
            session,
        })
    }

    /// Whether one more is refused.
    pub(super) fn is_full(&self) -> bool {
        self.lock().sessions.len() >= MAX_SESSIONS
    }

    /// Waits until one more is not refused.
    pub(super) async fn wait_for_slot(&self) {
        loop {
            let slot_freed = self.slot_freed.notified();
            tokio::pin!(slot_freed);
            // Registered before looking: what is given back meanwhile is heard of.
            slot_freed.as_mut().enable();
            if !self.is_full() {
                return;
            }
            slot_freed.await;
        }
    }

    /// Lists the sessions.
    pub(super) fn sessions(&self) -> Vec<Arc<McpSession>> {
        self.lock().sessions.values().cloned().collect()
    }

    fn release(&self, number: u64) {
        self.lock().sessions.remove(&number);
        self.slot_freed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        self.sessions_table
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session with its place. Dropping it ends the session's commands.
#[derive(Debug)]
pub(super) struct SessionSlot {
    registry: SessionRegistry,
    number: u64,
    session: Arc<McpSession>,
}

impl SessionSlot {
    /// The session.
    pub(super) fn session(&self) -> &Arc<McpSession> {
        &self.session
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let (registry, number) = (self.registry.clone(), self.number);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            registry.release(number);
            return;
        };
        // The place is free when nothing runs there any more. Calls that are under way may hold the session
        // for a while; its commands must not wait for them.
        let session = self.session.clone();
        runtime.spawn(async move {
            session.exec.shut_down().await;
            registry.release(number);
        });
    }
}

/// One call of a client.
#[derive(Clone, Debug)]
pub(super) struct McpContext {
    session: Arc<McpSession>,
    call: CallId,
    progress_support: ProgressSupport,
    /// The command that the call waits for.
    watched_command: Arc<Mutex<Option<ProgressSource>>>,
}

/// Whether a client learns that a call goes on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ProgressSupport {
    /// It is told, and waits.
    Supported,
    /// It is not, and may give up.
    Unsupported,
}

/// Longest wait of a call whose client does not learn that it goes on: many give up after a minute.
const MAX_WAIT_WITHOUT_PROGRESS: Duration = Duration::from_secs(50);

impl ProgressSupport {
    /// Returns a wait as far as the client's patience is known to go.
    pub(super) fn limit_wait(self, wait: Duration) -> Duration {
        match self {
            Self::Supported => wait,
            Self::Unsupported => wait.min(MAX_WAIT_WITHOUT_PROGRESS),
        }
    }
}

impl McpContext {
    /// Begins a call.
    pub(super) fn new(session: Arc<McpSession>, progress_support: ProgressSupport) -> Self {
        Self {
            call: session.next_call(),
            session,
            progress_support,
            watched_command: Arc::default(),
        }
    }

    /// The call's name.
    pub(super) fn call(&self) -> &CallId {
        &self.call
    }

    /// Whether the client learns that the call goes on.
    pub(super) fn progress_support(&self) -> ProgressSupport {
        self.progress_support
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
    pub(super) async fn lock_edits(&self) -> OwnedMutexGuard<()> {
        self.session.lock_edits().await
    }

    /// Complains that a file could not be changed.
    pub(super) fn write_error(&self, path: &PathUri, error: &FileError) -> ToolError {
        ToolError(match self.session.workspace.denial_reason(path) {
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
    pub(super) fn path(&self, typed: &str) -> Result<PathUri, TypedPathError> {
        self.session.workspace.base().path(typed)
    }

    /// Reads the path of a file that is to be written.
    pub(super) fn file(&self, typed: &str) -> Result<PathUri, TypedPathError> {
        self.session.workspace.base().file(typed)
    }

    /// Writes a path as an agent reads it.
    pub(super) fn display_path(&self, path: &PathUri) -> String {
        self.session.workspace.display_path(path)
    }

    /// Writes a path as its host does, from the root on.
    pub(super) fn native_path(&self, path: &PathUri) -> String {
        workspace::native_path(path)
    }

    /// Says which command the call waits for.
    pub(super) fn watch_command(&self, source: ProgressSource) {
        let watched_command = self.watched_command.lock();
        *watched_command.unwrap_or_else(PoisonError::into_inner) = Some(source);
    }

    /// The last line of the command that the call waits for.
    pub(super) fn progress_line(&self) -> Option<String> {
        let source = self
            .watched_command
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.session.progress_lines.line_of(source.as_ref()?)
    }
}
