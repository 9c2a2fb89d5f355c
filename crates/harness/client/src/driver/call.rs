//! Calls on their way from callers to the driver, and the queue they wait in.

use std::{collections::VecDeque, fmt, pin::pin, sync::Arc};

use bytes::Bytes;
use exec_wire::{
    id::{HandleId, OutputSeq, ProcessId},
    message::RequestId,
    method::MethodName,
    outgoing::Outgoing,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    client_shared::Kept, error::ExecServerError, events::ProcessEvents, filesystem::Gathered,
    http::QueuedBody,
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

/// Whether a call can be made again without doing anything twice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Repeat {
    /// It is: its effect is the same, however often it is asked.
    Always,
    /// It has no effect. It is made again if somebody still waits for the answer.
    IfAwaited,
    /// It is not: it could be done twice, or it names something that went with the connection.
    Never,
}

impl Repeat {
    /// What a method comes to if nothing else is said.
    pub(crate) const fn of(method: MethodName) -> Self {
        match method {
            // The server knows by the `writeId` what it has taken already.
            MethodName::ProcessWrite
            | MethodName::ProcessCloseStdin
            | MethodName::ProcessResize => Self::Always,
            MethodName::EnvironmentInfo
            | MethodName::EnvironmentStatus
            | MethodName::EnvironmentConfigRead
            | MethodName::CapabilityRootsDiscover
            | MethodName::CapabilitiesDiscover
            | MethodName::ProcessRead
            | MethodName::ProcessWait
            | MethodName::ProcessSnapshot
            | MethodName::ProcessList
            | MethodName::FsReadFile
            | MethodName::FsGetMetadata
            | MethodName::FsCanonicalize
            | MethodName::FsReadDirectory
            | MethodName::FsWalk
            | MethodName::FsSearch
            | MethodName::FsFind => Self::IfAwaited,
            MethodName::Initialize
            | MethodName::HttpRequest
            | MethodName::HttpRequestCancel
            | MethodName::ProcessStart
            | MethodName::ProcessSignal
            // One that lets a process end by itself is a signal, too.
            | MethodName::ProcessTerminate
            | MethodName::ProcessAttach
            | MethodName::ProcessRelease
            | MethodName::FsWriteFile
            | MethodName::FsCreateDirectory
            | MethodName::FsRemove
            | MethodName::FsCopy
            | MethodName::FsRename
            | MethodName::FsOpen
            | MethodName::FsReadBlock
            | MethodName::FsWriteBlock
            | MethodName::FsClose
            | MethodName::FsWatchMissing
            | MethodName::FsWatch
            | MethodName::FsUnwatch
            | MethodName::CommandExec
            | MethodName::CommandExecWrite
            | MethodName::CommandExecTerminate => Self::Never,
        }
    }
}

/// Calls that may wait in the channel, and as many that were taken off it while there is no
/// connection; one more is refused.
pub(crate) const QUEUE: usize = 1024;

#[derive(Debug)]
pub(super) struct Queue {
    asks: mpsc::Receiver<Ask>,
    /// Calls that were taken off the channel and wait for a connection.
    held: VecDeque<Ask>,
}

impl Queue {
    pub(super) fn new(asks: mpsc::Receiver<Ask>) -> Self {
        Self {
            asks,
            held: VecDeque::new(),
        }
    }

    /// Waits for the next call. `None`: nobody is left who could make one. Cancelling loses none.
    pub(super) async fn next(&mut self) -> Option<Ask> {
        match self.held.pop_front() {
            Some(ask) => Some(ask),
            None => self.asks.recv().await,
        }
    }

    /// Returns the next call, if there is one.
    pub(super) fn try_next(&mut self) -> Option<Ask> {
        let held = self.held.pop_front();
        held.or_else(|| self.asks.try_recv().ok())
    }

    /// Keeps a call until there is a connection.
    pub(super) fn hold(&mut self, ask: Ask) {
        self.held.push_back(ask);
    }

    /// Waits for something else while calls wait for that. `None`: nobody needs it any more.
    pub(super) async fn hold_while<T>(&mut self, awaited: impl Future<Output = T>) -> Option<T> {
        let mut awaited = pin!(awaited);
        loop {
            tokio::select! {
                done = &mut awaited => return Some(done),
                ask = self.asks.recv(), if self.held.len() < QUEUE => self.hold(ask?),
            }
        }
    }

    /// Fails every call that waits.
    pub(super) fn fail(&mut self, error: &ExecServerError) {
        while let Some(ask) = self.try_next() {
            ask.waiter.fail(error.clone());
        }
    }

    /// Fails every call that waits, but those about processes of the server.
    pub(super) fn fail_session(&mut self, error: &ExecServerError) {
        let mut kept = VecDeque::new();
        while let Some(ask) = self.try_next() {
            if ask.about.is_some() {
                kept.push_back(ask);
            } else {
                ask.waiter.fail(error.clone());
            }
        }
        self.held = kept;
    }

    /// Takes no further calls.
    pub(super) fn close(&mut self) {
        self.asks.close();
    }
}
