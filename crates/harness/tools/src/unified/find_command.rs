//! Finds commands by process id, also those that an earlier program left in a durable store.

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use exec_wire::{error::RpcError, id::ProcessId, process};

use super::{
    UnifiedExec,
    call::CallId,
    command_store::Durability,
    command_table::ProcessNumber,
    exec_command::ExecCommandError,
    handle_scope::HandleKind,
    process::{CommandDetails, UnifiedExecProcess},
};

/// Why a command was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindCommandError {
    /// Host: it does not list its commands, or does not let this program attach to one.
    #[error("failed to look for the command in the environment")]
    Store(#[source] RpcError),
    /// Caller: the table has no room for another command.
    #[error(transparent)]
    Table(#[from] ExecCommandError),
}

impl UnifiedExec {
    /// Returns the number of a command by its process id, or `None` if the scope has no such
    /// command. Attaches to a command of a durable store: its next output starts with everything
    /// that the store retains.
    pub async fn find(&self, id: &ProcessId) -> Result<Option<ProcessNumber>, FindCommandError> {
        let shared_exec = &*self.shared_exec;
        let is_ours = shared_exec.settings.scope.kind(id).is_some();
        let known = shared_exec.table.find(id);
        if known.is_some() || !is_ours || shared_exec.store.durability() == Durability::Session {
            return Ok(known);
        }
        let _attaching = shared_exec.attaching.lock().await;
        if let Some(number) = shared_exec.table.find(id) {
            return Ok(Some(number));
        }
        let listed = shared_exec.store.list().await;
        let listed = listed.map_err(FindCommandError::Store)?;
        let Some(listed) = listed.into_iter().find(|one| one.process_id == *id) else {
            return Ok(None);
        };
        let details = CommandDetails {
            number: shared_exec.table.allocate()?,
            call_id: CallId(id.to_string()),
            argv: listed.argv.clone(),
            cwd: listed.cwd.clone(),
            tty: listed.tty,
            // The list does not say; the store refuses a write to a command without stdin.
            has_stdin: true,
            started: UNIX_EPOCH + Duration::from_millis(listed.started_at_ms),
        };
        let process = shared_exec.store.store.attach(listed).await;
        let process = process.map_err(FindCommandError::Store)?;
        let guard = shared_exec.watch(details, process)?;
        // Output that was written before must be there when a call looks.
        guard.process().catch_up().await;
        Ok(Some(guard.disclose()))
    }

    /// Lists the commands of the scope that are in a durable store and that this program has not
    /// attached to. Ended tasks are not listed: their results are read by their ids.
    pub async fn stored(&self) -> Result<Vec<process::ProcessSummary>, RpcError> {
        let shared_exec = &*self.shared_exec;
        let mut stored = shared_exec.store.list().await?;
        stored.retain(|one| {
            let id = &one.process_id;
            let is_task = shared_exec.settings.scope.kind(id) == Some(HandleKind::Task);
            (one.running || !is_task) && shared_exec.table.find(id).is_none()
        });
        Ok(stored)
    }

    /// Ends an exited task: kills its remaining processes, and removes its command from the table
    /// unless a call holds it. Its result stays in a durable store until it is
    /// [forgotten](Self::forget_task).
    pub fn end_task(&self, process: &Arc<UnifiedExecProcess>) {
        let shared_exec = &*self.shared_exec;
        if shared_exec.table.remove_idle(process.number()) {
            shared_exec.store.release(Arc::clone(&process.process));
        }
    }

    /// Removes a task that is out of reach from the table, unless a call holds its command. It can be
    /// found again.
    pub fn lose_task(&self, process: &UnifiedExecProcess) {
        self.shared_exec.table.remove_idle(process.number());
    }

    /// Removes the result of a task from a durable store.
    pub async fn forget_task(&self, id: &ProcessId) {
        self.shared_exec.store.forget(id.clone()).await;
    }
}
