//! Where commands live: in the session of the program that started them, or in a store that
//! outlives it.
//!
//! Invariant: commands of a durable store run on when their handles are dropped, and another
//! program finds them by id.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_env::{
    environment::{Command, ExecBackend, StartError, StartedProcess},
    process::ExecProcess,
};
use exec_wire::{
    error::RpcError,
    id::ProcessId,
    process::{self, TerminateMode, WaitUntil},
};
use futures_util::future::{BoxFuture, FutureExt, ready};

use super::handle_scope::{HandleKind, HandleScope};

/// Starts commands, and finds those that an earlier program started.
pub trait CommandStore: fmt::Debug + Send + Sync {
    /// Returns whether commands outlive their handles.
    fn durability(&self) -> Durability;

    /// Starts a command. Dropping the future leaves nothing running.
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>>;

    /// Lists the commands that outlive their handles, running or retained.
    fn list(&self) -> BoxFuture<'_, Result<Vec<process::ProcessSummary>, RpcError>>;

    /// Attaches to a listed command. Its retained output is available from the start.
    fn attach(
        &self,
        listed: process::ProcessSummary,
    ) -> BoxFuture<'_, Result<Arc<dyn ExecProcess>, RpcError>>;

    /// Removes an ended command with its output. Errors are ignored: the store removes it later.
    fn forget(&self, id: ProcessId) -> BoxFuture<'_, ()>;
}

/// Whether commands outlive their handles.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Durability {
    /// A command ends with its last handle.
    Session,
    /// A command runs until it exits or is terminated.
    Durable,
}

/// Starts commands that end with their handles.
#[derive(Clone, Debug)]
pub(super) struct SessionCommands(pub(super) Arc<dyn ExecBackend>);

impl CommandStore for SessionCommands {
    fn durability(&self) -> Durability {
        Durability::Session
    }

    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        self.0.start(command)
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<process::ProcessSummary>, RpcError>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn attach(
        &self,
        listed: process::ProcessSummary,
    ) -> BoxFuture<'_, Result<Arc<dyn ExecProcess>, RpcError>> {
        let unknown = format!("unknown process id {}", listed.process_id);
        ready(Err(RpcError::invalid_request(unknown))).boxed()
    }

    fn forget(&self, _: ProcessId) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}

/// A store, and the ended commands that are being removed from it.
#[derive(Debug)]
pub(super) struct StoreAccess {
    pub(super) store: Arc<dyn CommandStore>,
    scope: HandleScope,
    /// Commands with a shown exit. They must not be found again.
    releasing: Mutex<BTreeSet<ProcessId>>,
}

/// How long the output of a killed process tree may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl StoreAccess {
    /// Creates the access for commands of one scope.
    pub(super) fn new(store: Arc<dyn CommandStore>, scope: HandleScope) -> Self {
        Self {
            store,
            scope,
            releasing: Mutex::default(),
        }
    }

    /// Returns whether commands outlive their handles.
    pub(super) fn durability(&self) -> Durability {
        self.store.durability()
    }

    /// Lists the commands of the scope, except those with a shown exit. Includes ended tasks.
    pub(super) async fn list(&self) -> Result<Vec<process::ProcessSummary>, RpcError> {
        if self.durability() == Durability::Session {
            return Ok(Vec::new());
        }
        let mut listed = self.store.list().await?;
        let releasing = self.lock();
        listed.retain(|one| {
            self.scope.kind(&one.process_id).is_some() && !releasing.contains(&one.process_id)
        });
        Ok(listed)
    }

    /// Ends what a command has left running. Removes it from the store, unless its result may be
    /// read again.
    pub(super) fn release(self: &Arc<Self>, process: Arc<dyn ExecProcess>) {
        let is_task = self.scope.kind(process.id()) == Some(HandleKind::Task);
        // Without a runtime nothing can be sent; the store removes the command later.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        if self.durability() == Durability::Session {
            return;
        }
        if !is_task {
            self.lock().insert(process.id().clone());
        }
        let access = Arc::clone(self);
        runtime.spawn(async move {
            let id = process.id().clone();
            if let Err(error) = process.terminate(TerminateMode::Force).await {
                tracing::debug!(%id, %error, "failed to end what a command has left running");
            }
            if is_task {
                return;
            }
            drop(process.wait(WaitUntil::Closed, Some(CLOSE_TIMEOUT)).await);
            drop(process);
            access.store.forget(id.clone()).await;
            access.lock().remove(&id);
        });
    }

    /// Removes the result of a task.
    pub(super) async fn forget(&self, id: ProcessId) {
        if self.durability() == Durability::Durable {
            self.store.forget(id).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<ProcessId>> {
        self.releasing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
