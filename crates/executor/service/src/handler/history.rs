//! Handlers of `history/*`, and of `process/attach` for processes that only the history knows.

use std::{io, sync::Arc};

use exec_env::durable::{DurableState, HistoryEntry, HistorySelection};
use exec_wire::{
    error::RpcError,
    message::RequestId,
    process::{
        AttachProcess, EmptyResult, ProcessList, ProcessSummary, PurgeHistory, PurgedHistory,
    },
};

use super::{Dispatch, HandlerContext, encode_result, respond_now};
use crate::session::{ProcessLookup, SessionProcess, owner_of, state_of};

impl HandlerContext<'_> {
    pub(super) fn list_history(&self, id: RequestId) -> Result<Dispatch, RpcError> {
        let durable = self.durable_state()?;
        let principal = self.session.principal_name();
        let list = async move {
            let entries = durable.history().await.map_err(|error| failed(&error))?;
            let is_visible = |entry: &HistoryEntry| entry.detached || entry.principal == principal;
            let visible = entries.into_iter().filter(is_visible);
            Ok(ProcessList {
                processes: visible.map(summary).collect(),
            })
        };
        Ok(Dispatch::Waiting(encode_result(id, list)))
    }

    pub(super) fn purge_history(
        &self,
        id: RequestId,
        params: PurgeHistory,
    ) -> Result<Dispatch, RpcError> {
        let durable = self.durable_state()?;
        let selection = HistorySelection {
            visible_to: self.session.principal_name(),
            process_id: params.process_id,
            started_at_ms: params.started_at_ms,
        };
        let detached = Arc::clone(&self.shared.detached);
        let purge = async move {
            let purged = durable.purge_history(selection.clone()).await;
            detached.evict_recorded(&selection);
            let purged = purged.map_err(|error| failed(&error))?;
            Ok(PurgedHistory { purged })
        };
        Ok(Dispatch::Running(encode_result(id, purge)))
    }

    /// Attaches to a process. One that neither the session nor the server knows any more may be in
    /// the history.
    pub(super) fn attach(&self, id: RequestId, params: AttachProcess) -> Dispatch {
        let attached = self.attach_to_known(&params);
        let unknown = matches!(self.find(&params.process_id), ProcessLookup::Unknown);
        let durable = match (&attached, self.shared.config.durable_state()) {
            (Err(_), Some(durable)) if unknown => Arc::clone(durable),
            _ => return respond_now(&id, attached),
        };
        let (shared, send_queue) = (Arc::clone(self.shared), Arc::clone(self.send_queue));
        let (streams, files) = (Arc::clone(self.streams), Arc::clone(self.files));
        let session = Arc::clone(&self.session);
        let visible_to = self.session.principal_name();
        let attach = async move {
            let selection = HistorySelection {
                visible_to,
                process_id: Some(params.process_id.clone()),
                started_at_ms: params.started_at_ms,
            };
            let ended = durable.open_history(selection).await;
            let Some(ended) = ended.map_err(|error| failed(&error))? else {
                return attached;
            };
            let restored = shared.detached.restore_process(ended);
            restored.map_err(|error| RpcError::invalid_request(error.to_string()))?;
            let context = HandlerContext {
                shared: &shared,
                send_queue: &send_queue,
                files: &files,
                streams: &streams,
                has_tunnels: false,
                session,
            };
            context.attach_to_known(&params)
        };
        Dispatch::Running(encode_result(id, attach))
    }

    /// Removes the record of a process that a client has forgotten. A later server would list it
    /// again.
    pub(super) fn purge_record(&self, id: RequestId, process: &SessionProcess) -> Dispatch {
        let durable = self.shared.config.durable_state();
        let recorded = process.handle.record_id().and(durable).cloned();
        let Some(durable) = recorded else {
            return respond_now(&id, Ok(EmptyResult {}));
        };
        let selection = HistorySelection {
            visible_to: self.session.principal_name(),
            process_id: Some(process.handle.id().clone()),
            started_at_ms: Some(process.handle.status().started_at_ms),
        };
        let purge = async move {
            let purged = durable.purge_history(selection).await;
            purged
                .map(|_| EmptyResult {})
                .map_err(|error| failed(&error))
        };
        Dispatch::Running(encode_result(id, purge))
    }

    fn durable_state(&self) -> Result<Arc<dyn DurableState>, RpcError> {
        self.shared.config.durable_state().cloned().ok_or_else(|| {
            RpcError::invalid_request(
                "this server keeps no history: it has no state directory (start it with \
                 --state-dir)",
            )
        })
    }
}

fn failed(error: &io::Error) -> RpcError {
    RpcError::internal(format!("failed to read the history: {error}"))
}

fn summary(entry: HistoryEntry) -> ProcessSummary {
    let state = state_of(entry.exit.as_ref());
    ProcessSummary {
        process_id: entry.process_id,
        argv: entry.argv,
        cwd: entry.cwd,
        tty: entry.tty,
        running: entry.exit.is_none(),
        exit_code: entry.exit.as_ref().map(|exit| exit.code),
        started_at_ms: entry.started_at_ms,
        os_pid: entry.os_pid,
        detached: entry.detached,
        usage: entry.exit.and_then(|exit| exit.usage),
        owner: Some(owner_of(entry.detached)),
        state: Some(state),
        output_bytes: Some(entry.output_bytes),
        durable: Some(true),
        ended_at_ms: entry.ended_at_ms,
        size: entry.size,
    }
}
