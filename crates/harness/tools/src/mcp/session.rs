//! Client sessions, their registry, and the context of a tool call.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use exec_env::{
    environment::Environment,
    filesystem::{ExecutorFileSystem, FileError},
};
use exec_wire::{
    fs::{FileMetadata, GetMetadata, ReadFile},
    path_uri::PathUri,
    sandbox::SandboxPolicy,
};
use tokio::sync::{Notify, OwnedMutexGuard, Semaphore};

use super::{
    progress::ProgressSource,
    tool::ToolError,
    workspace::{AgentWorkspace, TypedPathError},
};
use crate::unified::{CallId, CommandStore, NullEventSink, UnifiedExec, UnifiedExecSettings};

/// Maximum number of concurrent calls of one client.
pub(super) const MAX_CALLS: usize = 64;

/// Session of one client, or of all stateless requests.
#[derive(Debug)]
pub(super) struct McpSession {
    pub(super) environment: Environment,
    pub(super) workspace: Arc<AgentWorkspace>,
    pub(super) exec: UnifiedExec,
    pub(super) calls: Semaphore,
    edits: EditLock,
    next_call: AtomicU64,
}

impl McpSession {
    /// Creates a session without commands. Its commands end with it, except those in a durable
    /// store.
    pub(super) fn new(
        environment: &Environment,
        workspace: &Arc<AgentWorkspace>,
        edits: &EditLock,
        settings: UnifiedExecSettings,
        store: Option<Arc<dyn CommandStore>>,
    ) -> Self {
        let (env, policy) = (environment.clone(), workspace.clone());
        let events = Arc::new(NullEventSink);
        Self {
            exec: match store {
                Some(store) => UnifiedExec::with_store(env, settings, policy, events, store),
                None => UnifiedExec::new(env, settings, policy, events),
            },
            environment: environment.clone(),
            workspace: workspace.clone(),
            calls: Semaphore::new(MAX_CALLS),
            edits: edits.clone(),
            next_call: AtomicU64::new(1),
        }
    }

    /// Returns the id for the next call.
    pub(super) fn next_call(&self) -> CallId {
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        CallId(format!("call-{number}"))
    }

    /// Returns whether no command runs, no call is pending, and every exit was shown.
    pub(super) fn is_idle(&self) -> bool {
        self.calls.available_permits() == MAX_CALLS && self.exec.processes().is_empty()
    }
}

/// Serializes file changes of all clients of one server. A tool holds the lock from reading a file
/// to writing it, so that concurrent changes are not lost.
#[derive(Clone, Debug, Default)]
pub(super) struct EditLock(Arc<tokio::sync::Mutex<()>>);

/// Maximum number of sessions. Each may run dozens of commands.
const MAX_SESSIONS: usize = 64;

/// All sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionRegistry {
    sessions_table: Arc<Mutex<SessionTable>>,
    /// Notified when a slot is freed.
    slot_freed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct SessionTable {
    sessions: BTreeMap<u64, Arc<McpSession>>,
    next: u64,
}

/// The session limit is reached. The client may retry.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{MAX_SESSIONS} sessions are open already: end one, or retry later")]
pub(super) struct TooManySessions;

impl SessionRegistry {
    /// Registers a session.
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

    /// Returns whether the session limit is reached.
    pub(super) fn is_full(&self) -> bool {
        self.lock().sessions.len() >= MAX_SESSIONS
    }

    /// Waits for a free slot.
    pub(super) async fn wait_for_slot(&self) {
        loop {
            let slot_freed = self.slot_freed.notified();
            tokio::pin!(slot_freed);
            // Enable the notification before the check, so that no release is missed.
            slot_freed.as_mut().enable();
            if !self.is_full() {
                return;
            }
            slot_freed.await;
        }
    }

    /// Returns all sessions.
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

/// A registered session. Dropping it ends the session's commands.
#[derive(Debug)]
pub(super) struct SessionSlot {
    registry: SessionRegistry,
    number: u64,
    pub(super) session: Arc<McpSession>,
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let (registry, number) = (self.registry.clone(), self.number);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            registry.release(number);
            return;
        };
        // The slot is freed when the commands have ended. Pending calls may hold the session
        // longer, but must not delay the end of its commands.
        let session = self.session.clone();
        runtime.spawn(async move {
            session.exec.shut_down().await;
            registry.release(number);
        });
    }
}

/// Context of one tool call.
#[derive(Clone, Debug)]
pub(super) struct McpContext {
    session: Arc<McpSession>,
    /// Id of the call.
    pub(super) call: CallId,
    pub(super) progress_support: ProgressSupport,
    /// The command that the call waits for.
    watched_command: Arc<OnceLock<ProgressSource>>,
}

/// Whether the client receives progress notifications.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ProgressSupport {
    /// It does, and keeps waiting.
    Supported,
    /// It does not, and may time out.
    Unsupported,
}

/// Maximum wait without progress notifications: many clients time out after a minute.
const MAX_WAIT_WITHOUT_PROGRESS: Duration = Duration::from_secs(50);

impl ProgressSupport {
    /// Limits a wait to what the client supports.
    pub(super) fn limit_wait(self, wait: Duration) -> Duration {
        match self {
            Self::Supported => wait,
            Self::Unsupported => wait.min(MAX_WAIT_WITHOUT_PROGRESS),
        }
    }
}

impl McpContext {
    /// Creates the context of a call.
    pub(super) fn new(session: Arc<McpSession>, progress_support: ProgressSupport) -> Self {
        Self {
            call: session.next_call(),
            session,
            progress_support,
            watched_command: Arc::default(),
        }
    }

    /// Returns the client's commands.
    pub(super) fn exec(&self) -> &UnifiedExec {
        &self.session.exec
    }

    /// Returns the file system of the environment.
    pub(super) fn files(&self) -> &(dyn ExecutorFileSystem + 'static) {
        &*self.session.environment.files
    }

    /// Returns the metadata of a file, or of the target of a link.
    pub(super) async fn metadata(&self, path: &PathUri) -> Result<FileMetadata, FileError> {
        let get = GetMetadata {
            path: path.clone(),
            follow_symlinks: None,
            details: false,
            sandbox: self.sandbox(),
        };
        self.files().metadata(get).await
    }

    /// Returns a request to read a file.
    pub(super) fn read_request(&self, path: &PathUri) -> ReadFile {
        ReadFile {
            path: path.clone(),
            follow_symlinks: None,
            sandbox: self.sandbox(),
        }
    }

    /// Returns the sandbox policy for file operations.
    pub(super) fn sandbox(&self) -> Option<Box<SandboxPolicy>> {
        self.session.workspace.sandbox()
    }

    /// Acquires the edit lock. Hold it from reading a file to writing it.
    pub(super) async fn lock_edits(&self) -> OwnedMutexGuard<()> {
        self.session.edits.0.clone().lock_owned().await
    }

    /// Converts a failed write into an error with the sandbox's reason.
    pub(super) fn write_error(&self, path: &PathUri, error: &FileError) -> ToolError {
        ToolError(match self.session.workspace.denial_reason(path) {
            Some(why) => format!("{error}; {why}"),
            None => error.to_string(),
        })
    }

    /// Explains what the sandbox probably denied to a failed command.
    pub(super) fn explain_denial(&self, output: &str, is_denied: bool) -> Option<String> {
        self.session.workspace.explain_denial(output, is_denied)
    }

    /// Returns the directory of relative paths.
    pub(super) fn root(&self) -> &PathUri {
        self.session.workspace.root()
    }

    /// Parses a path as typed by an agent.
    pub(super) fn path(&self, typed: &str) -> Result<PathUri, TypedPathError> {
        self.session.workspace.path(typed)
    }

    /// Parses the path of a file to write.
    pub(super) fn file(&self, typed: &str) -> Result<PathUri, TypedPathError> {
        self.session.workspace.file(typed)
    }

    /// Formats a path for an agent.
    pub(super) fn display_path(&self, path: &PathUri) -> String {
        self.session.workspace.display_path(path)
    }

    /// Sets the command that the call waits for.
    pub(super) fn watch_command(&self, source: ProgressSource) {
        self.watched_command.get_or_init(|| source);
    }

    /// Returns the last output line of the command that the call waits for.
    pub(super) fn progress_line(&self) -> Option<String> {
        let process = match self.watched_command.get()? {
            ProgressSource::Call(call) => self.exec().process_started_by(call),
            ProgressSource::Number(number) => self.exec().process(*number),
        };
        process?.last_line()
    }
}
