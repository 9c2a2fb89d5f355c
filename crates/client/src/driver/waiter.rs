//! What travels between callers and the driver.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use exec_wire::{id::HandleId, message::RequestId, outgoing::Outgoing};
use tokio::sync::oneshot;

use crate::{client::CallError, events::ProcessEvents, filesystem::Gathered, hub::Kept};

/// What a call comes to.
pub(crate) type Reply = Result<Answered, CallError>;

/// A result, not yet decoded. It is a part of the message that it came in: a file's content is
/// large, and not copied to pass it on.
#[derive(Debug)]
pub(crate) struct Answered {
    /// The result's text.
    pub(crate) result: Bytes,
    /// The data member, if it travelled raw.
    pub(crate) data: Option<Bytes>,
    /// What the call has opened. It is closed if nobody takes the answer.
    pub(crate) kept: Option<Kept>,
}

/// Makes the request once its id is known.
pub(crate) type Request = Box<dyn FnOnce(&RequestId) -> Outgoing + Send>;

/// A call on its way to the server.
pub(crate) struct Ask {
    pub(crate) request: Request,
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
    /// A caller who works on files. If it gives up before the call is sent, it is not sent.
    File(oneshot::Sender<Reply>, Opens),
}

/// What a call opens on the server.
#[derive(Debug)]
pub(crate) enum Opens {
    /// Nothing.
    Nothing,
    /// A file.
    File(HandleId),
    /// A watch.
    Watch(Arc<Gathered>),
    /// A watch for missing paths, and who is told when it is over.
    Missing(u64, oneshot::Sender<()>),
}
