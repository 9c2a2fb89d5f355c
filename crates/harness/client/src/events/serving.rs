//! The events of a process that belongs to the server: taken as they come, and asked for again on the
//! next connection.

use std::sync::{Arc, MutexGuard};

use exec_core::log::Event;
use exec_wire::{
    id::{OutputSeq, ProcessId},
    process::ProcessSummary,
};

use super::{
    attached::{Attachment, Origin, Owner, Turn},
    reorder::Broken,
    retained::{ProcessEvents, State},
};
use crate::{driver::Watch, hub::Hub};

impl ProcessEvents {
    /// A process that belongs to the server.
    pub(crate) fn new_attached(
        id: ProcessId,
        hub: Arc<Hub>,
        watch: Option<Watch>,
        started_at_ms: u64,
        origin: Origin,
    ) -> Self {
        let process = Self::of(Owner::Server, id, hub, watch, started_at_ms);
        process.lock().attachment = Some(Attachment::new(origin));
        process
    }

    /// It is known when it was started.
    pub(crate) fn handle_born(&self, started_at_ms: u64, os_pid: Option<u32>) {
        let mut state = self.lock();
        state.os_pid = os_pid;
        state.started_at_ms = started_at_ms;
        if let Some(attachment) = &mut state.attachment {
            attachment.handle_born(started_at_ms);
        }
    }

    /// Its start was answered.
    pub(crate) fn handle_launched(&self) {
        if let Some(attachment) = &mut self.lock().attachment {
            attachment.handle_launched();
        }
    }

    /// Tells whether its start is not answered, or was not before the connection broke.
    pub(crate) fn is_starting(&self) -> bool {
        let state = self.lock();
        state
            .attachment
            .as_ref()
            .is_some_and(Attachment::is_starting)
    }

    /// Tells whether what the server knows by its id is this process.
    pub(crate) fn is(&self, summary: &ProcessSummary) -> bool {
        let state = self.lock();
        state
            .attachment
            .as_ref()
            .is_some_and(|attachment| attachment.is(summary))
    }

    /// The server is asked what it knows by its id, before it is asked for its events.
    pub(crate) fn handle_look_up(&self) {
        if let Some(attachment) = &mut self.lock().attachment {
            attachment.handle_look_up();
        }
    }

    /// The server is asked to send its events. Returns after which number.
    pub(crate) fn handle_attach(&self) -> OutputSeq {
        let mut state = self.lock();
        let next = state.followed.log().next_seq();
        let Some(attachment) = &mut state.attachment else {
            return OutputSeq(next.0 - 1);
        };
        attachment.handle_attach();
        attachment.last(next)
    }

    /// Returns what the server is to be told, if followers lag behind too far, or did.
    pub(crate) fn take_turn(&self) -> Option<Turn> {
        let mut state = self.lock();
        state.told.due = false;
        let lag = state.followed.lag();
        if state.failure.is_some() || state.followed.log().is_closed() {
            return None;
        }
        let attachment = state.attachment.as_mut()?;
        let turn = attachment.turn(lag);
        if turn == Some(Turn::Stop) {
            attachment.handle_stop();
        }
        turn
    }

    /// Records an event of a process that belongs to the server, whatever is missing before it.
    pub(super) fn handle_attached_event(
        &self,
        mut state: MutexGuard<'_, State>,
        event: Event,
    ) -> Result<(), Broken> {
        let next = state.followed.log().next_seq();
        let admitted = match &state.attachment {
            None => Some(event),
            Some(attachment) => attachment.admit(event, next)?,
        };
        if let Some(event) = admitted {
            state.followed.record(|log| log.skip_to(event.seq()));
            state.record(event)?;
            self.handle_recorded(state);
        }
        Ok(())
    }
}
