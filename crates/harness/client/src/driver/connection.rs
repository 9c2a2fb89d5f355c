//! One connection: its state, the loop that reads and writes, and the state that outlives it.
//!
//! Backpressure is decided here: [`ReadMode`] says whether to read more, given the lag of the
//! followers.

use std::{collections::BTreeSet, fmt, future::poll_fn, io, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_core::peer::PendingCalls;
use exec_env::environment::DisconnectReason;
use exec_transport::{
    link::{DataEncoding, Link, LinkPathState, LinkReadError, MessageWriter},
    session_tunnels::TunnelSender,
};
use exec_wire::{
    error::error_chain,
    id::{ProcessId, SessionId},
    initialize::ProtocolExtension,
    method::MethodName,
    outgoing_message::OutgoingMessage,
};
use futures_util::FutureExt;
use tokio::{
    sync::watch,
    task::yield_now,
    time::{Instant, sleep, timeout},
};

use super::{
    call::{
        AttachWaiter, Call, CallQueue, ConnectionNumber, RequestBuilder, ResponseSink, RetryPolicy,
    },
    recovery::ResumeState,
    server_requests::ServerRequests,
    session_processes::SessionProcesses,
};
use crate::{
    client::{ConnectionState, encoding},
    client_shared::ClientShared,
    error::ExecServerError,
    events::ProcessEvents,
    filesystem::FileWatches,
    handshake::OpenedSession,
    http::HttpBodies,
};

/// Age at which a connection counts as useful although it has no response yet.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) link: Link,
    pub(super) number: ConnectionNumber,
    pub(super) encoding: DataEncoding,
    pub(super) flow_control: FlowControlMode,
    pub(super) calls: PendingCalls<SentCall>,
    pub(super) unanswered: usize,
    /// Messages that may be read in the current throttle period.
    pub(super) throttle_allowance: u32,
    pub(super) processes: SessionProcesses,
    /// Server-owned processes with a pending release. Events with these ids are stale.
    pub(super) releasing: BTreeSet<ProcessId>,
    /// Server-owned processes with a pending lookup. Their ids may name other processes by now.
    pub(super) looking_up: Vec<Arc<ProcessEvents>>,
    /// Calls that wait for a release or a lookup. Bounded like unanswered calls.
    pub(super) deferred_calls: Vec<Call>,
    pub(super) watches: FileWatches,
    pub(super) bodies: HttpBodies,
    pub(super) server_requests: ServerRequests,
    /// What the tunnels send, if the server supports them.
    pub(super) tunnels: Option<TunnelSender>,
    pub(super) shared: Arc<ClientShared>,
    /// Messages that arrived during the handshake.
    pub(super) early_messages: Vec<Bytes>,
    session: SessionId,
    opened_at: Instant,
    /// Why the previous connection ended.
    pub(super) last_cause: String,
    /// Start of the period without progress, while progress is expected.
    pub(super) stalled_since: Option<Instant>,
    /// Number of calls sent.
    pub(super) calls_sent: u64,
    /// Number of the last answered call.
    pub(super) last_answered: u64,
    /// A process handle was just returned, and its owner has had no time to follow it.
    pub(super) handed_out_process: bool,
}

/// A call that waits for its response.
pub(super) struct SentCall {
    /// Sequence number of the call on its connection.
    pub(super) number: u64,
    pub(super) method: MethodName,
    pub(super) retry: RetryPolicy,
    /// The server-owned process of the call.
    pub(super) target: Option<Arc<ProcessEvents>>,
    pub(super) sink: ResponseSink,
    /// Builds the request again, if the call may be retried.
    pub(super) rebuild: Option<RequestBuilder>,
}

impl fmt::Debug for SentCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentCall")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

/// Why a connection ended.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum DisconnectCause {
    /// Transport: the link broke.
    #[error("{0}")]
    Transport(String),
    /// Peer: the server sent an invalid message.
    #[error("{0}")]
    Protocol(String),
}

impl From<DisconnectCause> for DisconnectReason {
    fn from(cause: DisconnectCause) -> Self {
        match cause {
            DisconnectCause::Transport(text) => Self::Transport(text),
            DisconnectCause::Protocol(text) => Self::Protocol(text),
        }
    }
}

impl From<io::Error> for DisconnectCause {
    fn from(error: io::Error) -> Self {
        Self::Transport(format!("failed to write to the connection: {error}"))
    }
}

impl From<LinkReadError> for DisconnectCause {
    fn from(error: LinkReadError) -> Self {
        let text = format!(
            "failed to read from the connection: {}",
            error_chain(&error)
        );
        match error {
            LinkReadError::TooLong(_) | LinkReadError::Protocol(_) | LinkReadError::InvalidUtf8 => {
                Self::Protocol(text)
            }
            LinkReadError::Io(_) | _ => Self::Transport(text),
        }
    }
}

impl ClientConnection {
    /// Creates the state of a new connection.
    pub(super) fn new(
        opened: OpenedSession,
        number: ConnectionNumber,
        shared: &Arc<ClientShared>,
    ) -> Self {
        let session = opened.session;
        let granted = |extension| session.extensions.contains(&extension);
        let encoding = encoding(&session);
        let flow_control = if granted(ProtocolExtension::Acknowledge) {
            FlowControlMode::PerProcess
        } else {
            FlowControlMode::PerConnection
        };
        let tunnels = granted(ProtocolExtension::Tunnels);
        if !tunnels {
            // The server was replaced by one without tunnels.
            shared.tunnels.fail_all("server does not support tunnels");
        }
        let id = session.session_id.clone();
        shared.handle_session(session, flow_control == FlowControlMode::PerProcess);
        Self {
            link: opened.link,
            number,
            encoding,
            flow_control,
            // Bounded elsewhere: by the limit of calls, and by the number of processes.
            calls: PendingCalls::new(usize::MAX),
            unanswered: 0,
            throttle_allowance: 0,
            processes: SessionProcesses::default(),
            releasing: BTreeSet::new(),
            looking_up: Vec::new(),
            deferred_calls: Vec::new(),
            watches: FileWatches::default(),
            bodies: HttpBodies::default(),
            server_requests: ServerRequests::default(),
            tunnels: tunnels.then(|| shared.tunnels.tunnels.connect()),
            shared: Arc::clone(shared),
            early_messages: opened.early_messages,
            session: id,
            opened_at: Instant::now(),
            last_cause: String::new(),
            stalled_since: None,
            calls_sent: 0,
            last_answered: 0,
            handed_out_process: false,
        }
    }

    /// Records a response: the connection is useful.
    pub(super) fn record_response(&mut self, number: u64) {
        self.stalled_since = None;
        self.last_answered = self.last_answered.max(number);
    }

    /// Returns whether any call was answered.
    pub(super) fn has_response(&self) -> bool {
        self.last_answered > 0
    }

    /// Returns the age of the connection.
    pub(super) fn age(&self) -> Duration {
        self.opened_at.elapsed()
    }

    /// Fails the calls that cannot be retried, and keeps the rest. With `reason`, no call will be
    /// retried.
    pub(super) fn into_resume_state(
        mut self,
        cause: &DisconnectCause,
        reason: Option<&DisconnectReason>,
    ) -> ResumeState {
        // A connection of some age was useful even without a response, because calls may take long.
        let since = self.stalled_since.filter(|_| self.age() < SETTLED_AFTER);
        self.processes
            .finished
            .confirm_responses(self.last_answered);
        self.watches.disconnect();
        self.bodies.disconnect(&cause.clone().into());
        let mut resume_state = ResumeState {
            session: self.session,
            cause: cause.to_string(),
            since: since.unwrap_or_else(Instant::now),
            processes: self.processes,
            pending: Vec::new(),
            retries: Vec::new(),
            unsent: self.deferred_calls,
        };
        for SentCall {
            method,
            retry,
            target,
            sink,
            rebuild,
            ..
        } in self.calls.drain()
        {
            match (sink, rebuild) {
                // Sent again on the next connection if the process still needs it.
                (ResponseSink::Terminate(_) | ResponseSink::Release(_), _) => {}
                (ResponseSink::Attach(pending, process, _), _) => {
                    resume_state.pending.push((pending, process));
                }
                (ResponseSink::LookUp(processes), _) => resume_state.pending.extend(processes),
                (ResponseSink::FillGap(process), _) => process.handle_read_interrupted(),
                (ResponseSink::Start(reply, process), _) => {
                    resume_state
                        .pending
                        .push((AttachWaiter::Start(reply), process));
                }
                (ResponseSink::ProbeStart(reply, process), _) => {
                    process.handle_read_interrupted();
                    resume_state
                        .pending
                        .push((AttachWaiter::Start(reply), process));
                }
                (sink, Some(request)) => {
                    if sink.is_awaited() || retry == RetryPolicy::Always {
                        resume_state.retries.push(Call {
                            method,
                            request,
                            retry,
                            target,
                            sink,
                        });
                    }
                }
                (sink, None) => sink.fail(match reason {
                    Some(reason) => reason.clone().into(),
                    None => ExecServerError::Interrupted {
                        method: method.as_str(),
                        reason: cause.to_string(),
                    },
                }),
            }
        }
        resume_state
    }
}

/// Bytes to encode before flushing although more calls are queued.
const MAX_BATCH_BYTES: usize = 256 << 10;
/// Bytes to encode before flushing although tunnels have more. Small, so that calls do not wait.
const TUNNEL_BATCH_BYTES: usize = 64 << 10;
/// Available messages to handle in a row before anything else.
const MAX_READ_BATCH: usize = 64;
/// Timeout of flushing when the client closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl ClientConnection {
    /// Runs until all handles are dropped, or the connection breaks.
    pub(super) async fn drive(&mut self, queue: &mut CallQueue) -> Result<(), DisconnectCause> {
        for message in std::mem::take(&mut self.early_messages) {
            self.handle_message(&message)?;
        }
        loop {
            let read_mode = self.read_mode();
            let may_read = read_mode == ReadMode::Normal
                || (read_mode == ReadMode::Throttled && self.throttle_allowance > 0);
            let slow = read_mode == ReadMode::Throttled && self.throttle_allowance == 0;
            let can_send = self.can_send();
            let has_space = self.link.writer.buffered() < TUNNEL_BATCH_BYTES;
            tokio::select! {
                flushed = flush_or_upkeep(&mut *self.link.writer) => {
                    flushed?;
                    self.server_requests.handle_flushed();
                }
                message = self.link.reader.next(), if may_read => {
                    let message = message?.ok_or_else(server_closed)?;
                    self.throttle_allowance = self.throttle_allowance.saturating_sub(1);
                    self.handle_message(&message)?;
                    self.read_available()?;
                    if std::mem::take(&mut self.handed_out_process) {
                        // Let the owner of the handle follow first: the buffered output may exceed
                        // the retention limit that applies without a follower.
                        yield_now().await;
                    }
                }
                () = sleep(THROTTLE_PERIOD), if slow => self.throttle_allowance = THROTTLE_MESSAGES,
                call = queue.next(), if can_send => match call {
                    Some(call) => {
                        // Process earlier releases first, which frees their ids, and send earlier
                        // closes of tunnels, which makes space for others.
                        self.handle_wakeup();
                        self.push_tunnel_messages();
                        self.handle_call(call);
                        self.take_queued_calls(queue)?;
                    }
                    None => {
                        self.handle_wakeup();
                        // The session outlives this client: without their closes, its tunnels
                        // would, too.
                        self.push_tunnel_messages();
                        // Close the connection even if the peer does not read.
                        drop(timeout(CLOSE_TIMEOUT, self.link.writer.close()).await);
                        return Ok(());
                    }
                },
                response = self.server_requests.next_response(), if !self.server_requests.is_empty() => {
                    self.send_response(response);
                }
                message = next_tunnel_message(&mut self.tunnels), if has_space => {
                    self.link.writer.push(message, self.encoding);
                    self.push_tunnel_messages();
                }
                () = self.shared.wakeup.notified() => self.handle_wakeup(),
                path = path_changed(&mut self.link.path) => self.shared.set_connection(match path {
                    LinkPathState::Connected => ConnectionState::Connected,
                    LinkPathState::Lost => ConnectionState::Reconnecting,
                }),
            }
        }
    }

    /// Handles the messages that are already available.
    fn read_available(&mut self) -> Result<(), DisconnectCause> {
        for _ in 0..MAX_READ_BATCH {
            if self.handed_out_process || self.read_mode() != ReadMode::Normal {
                break;
            }
            let Some(message) = self.link.reader.next().now_or_never() else {
                break;
            };
            self.handle_message(&message?.ok_or_else(server_closed)?)?;
        }
        Ok(())
    }

    /// Takes the calls that are already queued, and flushes without waiting.
    fn take_queued_calls(&mut self, queue: &mut CallQueue) -> Result<(), DisconnectCause> {
        while self.can_send()
            && let Some(call) = queue.try_next()
        {
            self.handle_call(call);
        }
        if let Some(flushed) = self.link.writer.flush().now_or_never() {
            flushed?;
            self.server_requests.handle_flushed();
        }
        Ok(())
    }

    /// Encodes the messages of tunnels that are ready.
    fn push_tunnel_messages(&mut self) {
        while self.link.writer.buffered() < TUNNEL_BATCH_BYTES
            && let Some(message) = next_tunnel_message(&mut self.tunnels).now_or_never()
        {
            self.link.writer.push(message, self.encoding);
        }
    }

    /// Returns whether another request may be sent.
    fn can_send(&self) -> bool {
        self.link.writer.buffered() < MAX_BATCH_BYTES && self.unanswered < self.link.max_in_flight
    }

    /// Returns how fast to read, and records whether reading is paused.
    fn read_mode(&self) -> ReadMode {
        let mode = || {
            ReadMode::for_lag(
                self.flow_control,
                self.shared.lag(),
                self.shared.has_waiters(),
            )
        };
        let lagging = mode() != ReadMode::Normal;
        self.shared.set_reading_paused(lagging);
        // Check again: a follower may have caught up before the flag was set, and would not have
        // woken the driver.
        if lagging { mode() } else { ReadMode::Normal }
    }
}

/// Waits until the path below a link is lost or restored.
async fn path_changed(path: &mut Option<watch::Receiver<LinkPathState>>) -> LinkPathState {
    if let Some(path_state) = path
        && path_state.changed().await.is_ok()
    {
        return *path_state.borrow_and_update();
    }
    // The link has no path, or the path has ended. The link then ends, too, and reports it.
    std::future::pending().await
}

/// Waits for the next message of a tunnel. Cancel safe.
async fn next_tunnel_message(tunnels: &mut Option<TunnelSender>) -> OutgoingMessage {
    match tunnels {
        Some(tunnels) => poll_fn(|cx| tunnels.poll_message(cx)).await,
        None => std::future::pending().await,
    }
}

fn server_closed() -> DisconnectCause {
    DisconnectCause::Transport("server closed the connection".to_owned())
}

/// Flushes buffered messages, or waits until the link needs to flush.
async fn flush_or_upkeep(writer: &mut dyn MessageWriter) -> io::Result<()> {
    if writer.buffered() == 0 {
        poll_fn(|cx| writer.poll_keepalive(cx)).await;
    }
    writer.flush().await
}

/// Maximum total lag of the followers of all processes before reading pauses. Without the extension
/// `acknowledge` there is one flow-control window per connection, so a process that is not followed
/// blocks the others.
const LAG_BYTES: u64 = 1 << 20;
/// Maximum lag while a caller waits for a response, which arrives after the data in the link.
const AWAITED_LAG_BYTES: u64 = 16 << 20;
/// Absolute maximum lag. Above the limit before it, reading is throttled: the response arrives
/// after the data that was in the link when it was sent, and the server can only send as fast as
/// the client reads.
const MAX_LAG_BYTES: u64 = 256 << 20;
/// Maximum lag with the extension: each process has its own window, and this is the sum of the
/// windows of all processes of a session.
const PER_PROCESS_LAG_BYTES: u64 = 1 << 30;
/// Interval of throttled reading, and number of messages per interval.
const THROTTLE_PERIOD: Duration = Duration::from_millis(10);
const THROTTLE_MESSAGES: u32 = 4;

/// The party that pauses a process with slow followers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FlowControlMode {
    /// The server, for each process by its acknowledgements.
    PerProcess,
    /// The connection, for all processes at once.
    PerConnection,
}

/// How fast to read from the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ReadMode {
    Normal,
    /// Reads slowly, because a caller waits for a response behind the data.
    Throttled,
    Paused,
}

impl ReadMode {
    /// Chooses the mode from the lag and from whether a caller waits for a response.
    fn for_lag(flow_control: FlowControlMode, lag: u64, awaited: bool) -> Self {
        let limit = match flow_control {
            FlowControlMode::PerProcess => PER_PROCESS_LAG_BYTES,
            FlowControlMode::PerConnection if awaited => AWAITED_LAG_BYTES,
            FlowControlMode::PerConnection => LAG_BYTES,
        };
        if lag < limit {
            Self::Normal
        } else if awaited && lag < MAX_LAG_BYTES {
            Self::Throttled
        } else {
            Self::Paused
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awaited_response_raises_the_lag_limit() {
        let mode = |lag, awaited| ReadMode::for_lag(FlowControlMode::PerConnection, lag, awaited);
        assert_eq!(mode(0, false), ReadMode::Normal);
        assert_eq!(mode(LAG_BYTES, false), ReadMode::Paused);
        assert_eq!(mode(LAG_BYTES, true), ReadMode::Normal);
        assert_eq!(mode(AWAITED_LAG_BYTES, true), ReadMode::Throttled);
        assert_eq!(mode(MAX_LAG_BYTES, true), ReadMode::Paused);
    }

    #[test]
    fn per_process_windows_allow_a_larger_lag() {
        let mode = |lag| ReadMode::for_lag(FlowControlMode::PerProcess, lag, false);
        assert_eq!(mode(MAX_LAG_BYTES), ReadMode::Normal);
        assert_eq!(mode(PER_PROCESS_LAG_BYTES), ReadMode::Paused);
    }
}
