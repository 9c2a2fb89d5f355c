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
    client_shared::ReleaseGuard, error::ExecServerError, events::ProcessEvents,
    filesystem::ChangeQueue, http::BodyQueue,
};

/// What a call comes to.
pub(crate) type CallResult = Result<RawResponse, ExecServerError>;

/// A result, not yet decoded. It is a part of the message that it came in: a file's content is
/// large, and not copied to pass it on.
#[derive(Debug)]
pub(crate) struct RawResponse {
    /// The result's text.
    pub(crate) result: Bytes,
    /// The data member, if it travelled raw.
    pub(crate) data: Option<Bytes>,
    /// What the call has opened. It is closed if nobody takes the answer.
    pub(crate) release_guard: Option<ReleaseGuard>,
    /// Where it came from.
    pub(crate) connection: ConnectionNumber,
}

/// Which of a client's connections: each has its own open files, watches and bodies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ConnectionNumber(pub(crate) u64);

/// Makes the request once its id is known, and again for every connection that it is sent on.
pub(crate) type RequestBuilder = Box<dyn Fn(&RequestId) -> Outgoing + Send>;

/// A call on its way to the server.
pub(crate) struct Call {
    pub(crate) method: MethodName,
    pub(crate) request: RequestBuilder,
    /// Whether it is made again over another connection.
    pub(crate) retry: RetryPolicy,
    /// The process of the server that it is about, if it is about one: another session may go on with
    /// that.
    pub(crate) target: Option<Arc<ProcessEvents>>,
    pub(crate) sink: ResponseSink,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("method", &self.method)
            .field("sink", &self.sink)
            .finish_non_exhaustive()
    }
}

/// Who waits for an answer.
#[derive(Debug)]
pub(crate) enum ResponseSink {
    /// A caller.
    Call(oneshot::Sender<CallResult>),
    /// A caller who starts a process.
    Start(oneshot::Sender<CallResult>, Arc<ProcessEvents>),
    /// A caller whose start was not answered before the connection broke: if the process can be read,
    /// it was started.
    ProbeStart(oneshot::Sender<CallResult>, Arc<ProcessEvents>),
    /// A process whose events have a gap.
    FillGap(Arc<ProcessEvents>),
    /// Whoever wants the events of a process of the server, after a number.
    Attach(AttachWaiter, Arc<ProcessEvents>, OutputSeq),
    /// Whoever wants to know which processes of the server are still there.
    LookUp(Vec<(AttachWaiter, Arc<ProcessEvents>)>),
    /// Nobody; the events of a process of the server are not wanted any more.
    Release(ProcessId),
    /// Nobody; a process that has failed is terminated.
    Terminate(Arc<ProcessEvents>),
    /// A caller who works on files. If it gives up before the call is sent, it is not sent.
    Cancellable(oneshot::Sender<CallResult>, OpenedResource),
}

impl ResponseSink {
    /// There is no answer.
    pub(super) fn fail(self, error: ExecServerError) {
        match self {
            Self::Call(reply)
            | Self::Start(reply, _)
            | Self::ProbeStart(reply, _)
            | Self::Cancellable(reply, _) => {
                // A caller that gave up needs no answer.
                drop(reply.send(Err(error)));
            }
            Self::Attach(pending, ..) => pending.fail(error),
            Self::LookUp(processes) => {
                for (pending, _) in processes {
                    pending.fail(error.clone());
                }
            }
            Self::FillGap(_) | Self::Terminate(_) | Self::Release(_) => {}
        }
    }

    /// Returns whether anybody still wants the answer.
    pub(super) fn is_awaited(&self) -> bool {
        match self {
            Self::Call(reply)
            | Self::Start(reply, _)
            | Self::ProbeStart(reply, _)
            | Self::Cancellable(reply, _) => !reply.is_closed(),
            Self::Attach(pending, ..) => pending.is_awaited(),
            Self::FillGap(_) | Self::Terminate(_) | Self::LookUp(_) | Self::Release(_) => true,
        }
    }
}

/// Who waits for a process to be attached.
#[derive(Debug)]
pub(crate) enum AttachWaiter {
    /// Nobody: it was before.
    None,
    /// A caller.
    Attach(oneshot::Sender<CallResult>),
    /// A caller whose start was not answered before the connection broke: if the server has the
    /// process, it was started.
    Start(oneshot::Sender<CallResult>),
}

impl AttachWaiter {
    pub(super) fn fail(self, error: ExecServerError) {
        self.settle(Err(error));
    }

    pub(super) fn settle(self, result: CallResult) {
        match self {
            Self::None => {}
            // A caller that gave up needs no answer.
            Self::Attach(reply) | Self::Start(reply) => drop(reply.send(result)),
        }
    }

    fn is_awaited(&self) -> bool {
        match self {
            Self::None => true,
            Self::Attach(reply) | Self::Start(reply) => !reply.is_closed(),
        }
    }
}

/// What a call opens on the server.
#[derive(Debug)]
pub(crate) enum OpenedResource {
    /// Nothing.
    None,
    /// Nothing; it names what was opened on this connection.
    UsesConnection(ConnectionNumber),
    /// A file.
    File(HandleId),
    /// A watch.
    Watch(Arc<ChangeQueue>),
    /// A watch for missing paths, and who is told when it is over.
    MissingWatch(u64, oneshot::Sender<()>),
    /// A streamed body.
    Body(Arc<BodyQueue>),
}

/// Whether a call can be made again without doing anything twice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RetryPolicy {
    /// It is: its effect is the same, however often it is asked.
    Always,
    /// It has no effect. It is made again if somebody still waits for the answer.
    IfAwaited,
    /// It is not: it could be done twice, or it names something that went with the connection.
    Never,
}

impl RetryPolicy {
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
pub(crate) const MAX_QUEUED_CALLS: usize = 1024;

#[derive(Debug)]
pub(super) struct CallQueue {
    calls: mpsc::Receiver<Call>,
    /// Calls that were taken off the channel and wait for a connection.
    held: VecDeque<Call>,
}

impl CallQueue {
    pub(super) fn new(calls: mpsc::Receiver<Call>) -> Self {
        Self {
            calls,
            held: VecDeque::new(),
        }
    }

    /// Waits for the next call. `None`: nobody is left who could make one. Cancelling loses none.
    pub(super) async fn next(&mut self) -> Option<Call> {
        match self.held.pop_front() {
            Some(call) => Some(call),
            None => self.calls.recv().await,
        }
    }

    /// Returns the next call, if there is one.
    pub(super) fn try_next(&mut self) -> Option<Call> {
        let held = self.held.pop_front();
        held.or_else(|| self.calls.try_recv().ok())
    }

    /// Keeps a call until there is a connection.
    pub(super) fn hold(&mut self, call: Call) {
        self.held.push_back(call);
    }

    /// Waits for something else while calls wait for that. `None`: nobody needs it any more.
    pub(super) async fn hold_while<T>(&mut self, awaited: impl Future<Output = T>) -> Option<T> {
        let mut awaited = pin!(awaited);
        loop {
            tokio::select! {
                done = &mut awaited => return Some(done),
                call = self.calls.recv(), if self.held.len() < MAX_QUEUED_CALLS => self.hold(call?),
            }
        }
    }

    /// Fails every call that waits.
    pub(super) fn fail(&mut self, error: &ExecServerError) {
        while let Some(call) = self.try_next() {
            call.sink.fail(error.clone());
        }
    }

    /// Fails every call that waits, but those about processes of the server.
    pub(super) fn fail_session(&mut self, error: &ExecServerError) {
        let mut server_calls = VecDeque::new();
        while let Some(call) = self.try_next() {
            if call.target.is_some() {
                server_calls.push_back(call);
            } else {
                call.sink.fail(error.clone());
            }
        }
        self.held = server_calls;
    }

    /// Takes no further calls.
    pub(super) fn close(&mut self) {
        self.calls.close();
    }
}
