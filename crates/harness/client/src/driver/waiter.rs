//! What travels between callers and the driver.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use exec_wire::{
    id::{HandleId, OutputSeq, ProcessId},
    message::RequestId,
    method::MethodName,
    outgoing::Outgoing,
};
use tokio::sync::oneshot;

use super::repeat::Repeat;
use crate::{
    error::ExecServerError, events::ProcessEvents, filesystem::Gathered, http::QueuedBody,
    hub::Kept,
};

/// What a call comes to.
pub(crate) type Reply = Result<Answered, ExecServerError>;

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
    /// Where it came from.
    pub(crate) connection: ConnectionNumber,
}

/// Which of a client's connections: each has its own open files, watches and bodies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ConnectionNumber(pub(crate) u64);

/// Makes the request once its id is known, and again for every connection that it is sent on.
pub(crate) type Request = Box<dyn Fn(&RequestId) -> Outgoing + Send>;

/// A call on its way to the server.
pub(crate) struct Ask {
    pub(crate) method: MethodName,
    pub(crate) request: Request,
    /// Whether it is made again over another connection.
    pub(crate) repeat: Repeat,
    /// The process of the server that it is about, if it is about one: another session may go on with
    /// that.
    pub(crate) about: Option<Arc<ProcessEvents>>,
    pub(crate) waiter: Waiter,
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask")
            .field("method", &self.method)
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
    /// A caller whose start was not answered before the connection broke: if the process can be read,
    /// it was started.
    Adopt(oneshot::Sender<Reply>, Arc<ProcessEvents>),
    /// A process whose events have a gap.
    Fill(Arc<ProcessEvents>),
    /// Whoever wants the events of a process of the server, after a number.
    Attach(Pending, Arc<ProcessEvents>, OutputSeq),
    /// Whoever wants to know which processes of the server are still there.
    List(Vec<(Pending, Arc<ProcessEvents>)>),
    /// Nobody; the events of a process of the server are not wanted any more.
    Release(ProcessId),
    /// Nobody; a process that has failed is terminated.
    End(Arc<ProcessEvents>),
    /// A caller who works on files. If it gives up before the call is sent, it is not sent.
    File(oneshot::Sender<Reply>, Opens),
}

impl Waiter {
    /// There is no answer.
    pub(super) fn fail(self, error: ExecServerError) {
        match self {
            Self::Call(reply)
            | Self::Start(reply, _)
            | Self::Adopt(reply, _)
            | Self::File(reply, _) => {
                // A caller that gave up needs no answer.
                drop(reply.send(Err(error)));
            }
            Self::Attach(pending, ..) => pending.fail(error),
            Self::List(processes) => {
                for (pending, _) in processes {
                    pending.fail(error.clone());
                }
            }
            Self::Fill(_) | Self::End(_) | Self::Release(_) => {}
        }
    }

    /// Tells whether anybody still wants the answer.
    pub(super) fn is_awaited(&self) -> bool {
        match self {
            Self::Call(reply)
            | Self::Start(reply, _)
            | Self::Adopt(reply, _)
            | Self::File(reply, _) => !reply.is_closed(),
            Self::Attach(pending, ..) => pending.is_awaited(),
            Self::Fill(_) | Self::End(_) | Self::List(_) | Self::Release(_) => true,
        }
    }
}

/// Who waits for a process to be attached.
#[derive(Debug)]
pub(crate) enum Pending {
    /// Nobody: it was before.
    Nobody,
    /// A caller.
    Attach(oneshot::Sender<Reply>),
    /// A caller whose start was not answered before the connection broke: if the server has the
    /// process, it was started.
    Start(oneshot::Sender<Reply>),
}

impl Pending {
    pub(super) fn fail(self, error: ExecServerError) {
        self.settle(Err(error));
    }

    pub(super) fn settle(self, result: Reply) {
        match self {
            Self::Nobody => {}
            // A caller that gave up needs no answer.
            Self::Attach(reply) | Self::Start(reply) => drop(reply.send(result)),
        }
    }

    fn is_awaited(&self) -> bool {
        match self {
            Self::Nobody => true,
            Self::Attach(reply) | Self::Start(reply) => !reply.is_closed(),
        }
    }
}

/// What a call opens on the server.
#[derive(Debug)]
pub(crate) enum Opens {
    /// Nothing.
    Nothing,
    /// Nothing; it names what was opened on this connection.
    Uses(ConnectionNumber),
    /// A file.
    File(HandleId),
    /// A watch.
    Watch(Arc<Gathered>),
    /// A watch for missing paths, and who is told when it is over.
    Missing(u64, oneshot::Sender<()>),
    /// A streamed body.
    Body(Arc<QueuedBody>),
}
