//! Calls on their way from callers to the driver, and the queue they wait in.

use std::{collections::VecDeque, fmt, pin::pin, sync::Arc};

use bytes::Bytes;
use exec_wire::{
    id::{HandleId, OutputSeq, ProcessId, TunnelId},
    message::RequestId,
    method::MethodName,
    outgoing_message::OutgoingMessage,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    client_shared::ReleaseGuard, error::ExecServerError, events::ProcessEvents,
    filesystem::ChangeQueue, http::BodyQueue,
};

/// Result of a call.
pub(crate) type CallResult = Result<RawResponse, ExecServerError>;

/// An undecoded result. It is a slice of its message, so that large file contents are not copied.
#[derive(Debug)]
pub(crate) struct RawResponse {
    /// JSON text of the result.
    pub(crate) result: Bytes,
    /// The data member, if it was sent raw.
    pub(crate) data: Option<Bytes>,
    /// Releases the resource that the call opened, unless the caller takes it.
    pub(crate) release_guard: Option<ReleaseGuard>,
    /// The connection of the response.
    pub(crate) connection: ConnectionNumber,
}

impl RawResponse {
    /// Leaves the release of the opened resource to the caller.
    pub(crate) fn keep_resource(&mut self) {
        if let Some(guard) = self.release_guard.take() {
            guard.disarm();
        }
    }
}

/// Identifies a connection of a client. Each has its own open files, watches and bodies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ConnectionNumber(pub(crate) u64);

/// Builds the request for a given id. Called again for every connection that it is sent on.
pub(crate) type RequestBuilder = Box<dyn Fn(&RequestId) -> OutgoingMessage + Send>;

/// A call on its way to the server.
pub(crate) struct Call {
    pub(crate) method: MethodName,
    pub(crate) request: RequestBuilder,
    /// Whether to retry the call on another connection.
    pub(crate) retry: RetryPolicy,
    /// The server-owned process of the call, which may continue in another session.
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

/// Receiver of a response.
#[derive(Debug)]
pub(crate) enum ResponseSink {
    /// A caller.
    Call(oneshot::Sender<CallResult>),
    /// A caller that starts a process.
    Start(oneshot::Sender<CallResult>, Arc<ProcessEvents>),
    /// A caller with a start that was not answered before the connection broke. If the process can
    /// be read, it was started.
    ProbeStart(oneshot::Sender<CallResult>, Arc<ProcessEvents>),
    /// A process with a gap in its events.
    FillGap(Arc<ProcessEvents>),
    /// An attach to a server-owned process, after this event.
    Attach(AttachWaiter, Arc<ProcessEvents>, OutputSeq),
    /// A lookup of server-owned processes.
    LookUp(Vec<(AttachWaiter, Arc<ProcessEvents>)>),
    /// No caller: a release of a server-owned process.
    Release(ProcessId),
    /// No caller: the termination of a failed process.
    Terminate(Arc<ProcessEvents>),
    /// A caller that may cancel. The call is not sent if the caller has already been dropped.
    Cancellable(oneshot::Sender<CallResult>, OpenedResource),
}

impl ResponseSink {
    /// Fails the call.
    pub(super) fn fail(self, error: ExecServerError) {
        match self {
            Self::Call(reply)
            | Self::Start(reply, _)
            | Self::ProbeStart(reply, _)
            | Self::Cancellable(reply, _) => {
                // The caller may have been dropped.
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

    /// Returns whether the response is still wanted.
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

/// Waiter of an attach.
#[derive(Debug)]
pub(crate) enum AttachWaiter {
    /// No caller: the process was attached before.
    None,
    /// A caller.
    Attach(oneshot::Sender<CallResult>),
    /// A caller with a start that was not answered before the connection broke. If the server has
    /// the process, it was started.
    Start(oneshot::Sender<CallResult>),
}

impl AttachWaiter {
    pub(super) fn fail(self, error: ExecServerError) {
        self.settle(Err(error));
    }

    pub(super) fn settle(self, result: CallResult) {
        match self {
            Self::None => {}
            // The caller may have been dropped.
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

/// A resource that a call opens on the server.
#[derive(Debug)]
pub(crate) enum OpenedResource {
    /// Nothing.
    None,
    /// None, but the call uses a resource of this connection.
    UsesConnection(ConnectionNumber),
    /// A file.
    File(HandleId),
    /// A watch.
    Watch(Arc<ChangeQueue>),
    /// A missing-path watch, and the channel that signals its end.
    MissingWatch(u64, oneshot::Sender<()>),
    /// A streamed body.
    Body(Arc<BodyQueue>),
    /// A tunnel or a listener.
    Tunnel(TunnelId),
}

/// Whether a call may be retried on another connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RetryPolicy {
    /// Idempotent: always retried.
    Always,
    /// Without effect: retried if a caller still waits.
    IfAwaited,
    /// Not idempotent, or bound to its connection: never retried.
    Never,
}

impl RetryPolicy {
    /// Returns the default policy of a method.
    pub(crate) const fn of(method: MethodName) -> Self {
        // The server deduplicates writes by `writeId`.
        let is_idempotent = matches!(
            method,
            MethodName::ProcessWrite | MethodName::ProcessCloseStdin | MethodName::ProcessResize
        );
        let is_without_effect = matches!(
            method,
            MethodName::EnvironmentInfo
                | MethodName::EnvironmentStatus
                | MethodName::EnvironmentConfigRead
                | MethodName::CapabilityRootsDiscover
                | MethodName::CapabilitiesDiscover
                | MethodName::ProcessRead
                | MethodName::ProcessWait
                | MethodName::ProcessSnapshot
                | MethodName::ProcessList
                | MethodName::HistoryList
                | MethodName::ServerStatus
                // The server ignores the repeated request of an open tunnel or listener.
                | MethodName::TunnelOpen
                | MethodName::TunnelListen
                | MethodName::PortsList
                | MethodName::FsReadFile
                | MethodName::FsGetMetadata
                | MethodName::FsCanonicalize
                | MethodName::FsReadDirectory
                | MethodName::FsWalk
                | MethodName::FsSearch
                | MethodName::FsFind
        );
        match (is_idempotent, is_without_effect) {
            (true, _) => Self::Always,
            (false, true) => Self::IfAwaited,
            // Includes graceful termination, which sends a signal.
            (false, false) => Self::Never,
        }
    }
}

/// Maximum number of calls in the channel, and of those held while disconnected. Further
/// calls are rejected.
pub(crate) const MAX_QUEUED_CALLS: usize = 1024;

#[derive(Debug)]
pub(super) struct CallQueue {
    calls: mpsc::Receiver<Call>,
    /// Calls that were taken from the channel and wait for a connection.
    waiting: VecDeque<Call>,
}

impl CallQueue {
    pub(super) fn new(calls: mpsc::Receiver<Call>) -> Self {
        Self {
            calls,
            waiting: VecDeque::new(),
        }
    }

    /// Waits for the next call. `None` if all callers are gone. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Call> {
        match self.waiting.pop_front() {
            Some(call) => Some(call),
            None => self.calls.recv().await,
        }
    }

    /// Returns the next call, if there is one.
    pub(super) fn try_next(&mut self) -> Option<Call> {
        let waiting = self.waiting.pop_front();
        waiting.or_else(|| self.calls.try_recv().ok())
    }

    /// Holds a call until there is a connection.
    pub(super) fn hold(&mut self, call: Call) {
        self.waiting.push_back(call);
    }

    /// Awaits a future and holds the calls that arrive meanwhile. `None` if all callers are gone.
    pub(super) async fn hold_while<T>(&mut self, awaited: impl Future<Output = T>) -> Option<T> {
        let mut awaited = pin!(awaited);
        loop {
            tokio::select! {
                output = &mut awaited => return Some(output),
                call = self.calls.recv(), if self.waiting.len() < MAX_QUEUED_CALLS => self.hold(call?),
            }
        }
    }

    /// Fails every queued call.
    pub(super) fn fail(&mut self, error: &ExecServerError) {
        while let Some(call) = self.try_next() {
            call.sink.fail(error.clone());
        }
    }

    /// Fails every queued call, except those for server-owned processes.
    pub(super) fn fail_session(&mut self, error: &ExecServerError) {
        let mut server_calls = VecDeque::new();
        while let Some(call) = self.try_next() {
            if call.target.is_some() {
                server_calls.push_back(call);
            } else {
                call.sink.fail(error.clone());
            }
        }
        self.waiting = server_calls;
    }

    /// Rejects further calls.
    pub(super) fn close(&mut self) {
        self.calls.close();
    }
}
