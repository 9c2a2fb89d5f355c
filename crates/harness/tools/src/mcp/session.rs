//! One client, its commands, and the place where they run.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use exec_env::environment::Environment;
use tokio::sync::{Mutex, OwnedMutexGuard, Semaphore};

use super::{words::LastWords, workspace::Workspace};
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
pub(super) struct Edits(Arc<Mutex<()>>);
