//! What travels between callers and the driver.

use std::{fmt, sync::Arc};

use exec_wire::{message::RequestId, outgoing::Outgoing};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::{client::CallError, events::ProcessEvents};

/// What a call comes to.
pub(crate) type Reply = Result<Box<RawValue>, CallError>;

/// A call on its way to the server.
pub(crate) struct Ask {
    pub(crate) request: Box<dyn FnOnce(&RequestId) -> Outgoing + Send>,
    pub(crate) waiter: Waiter,
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask")
            .field("waiter", &self.waiter)
            .finish_non_exhaustive()
    }
}

/// Who waits for an answer.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A caller.
    Call(oneshot::Sender<Reply>),
    /// A caller who starts a process.
    Start(oneshot::Sender<Reply>, Arc<ProcessEvents>),
    /// A process whose events have a gap.
    Fill(Arc<ProcessEvents>),
}
