//! The driver of one harness stream: reads, writes, runs the timers, and reconnects to the executor
//! with exponential backoff after a loss.

use std::{
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use exec_relay::{
    frame::{FrameBody, RESET_CLOSED, RelayFrame},
    identity::NoisePublicKey,
    stream::DeliveryMode,
};
use exec_wire::error::error_chain;
use futures_util::future::BoxFuture;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};

use super::{GrantSource, HarnessOptions, dial};
use crate::{
    connect::{ConnectError, ConnectFault},
    link::LinkPathState,
    relay::{
        DeadlineTimer, MAX_FLUSHES_PER_POLL, MAX_READS_PER_POLL, SEND_BUFFER_BYTES,
        StreamCloseReason, TimerState,
        stream_shared::{ReadyQueue, SendProgress, StreamShared},
    },
    websocket::socket::{BinarySocket, RawMessage},
};

/// How long an acknowledging executor may be silent before the harness reconnects. The executor
/// sends a heartbeat every ten seconds and gives up after thirty, so a silently dead path is
/// replaced in time.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(15);
/// Messages inspected for a pong before the relay is considered dead, as in the stock harness.
const MAX_MESSAGES_BEFORE_PONG: usize = 32;

pub(super) struct StreamDriver {
    shared: Arc<StreamShared>,
    ready_queue: Arc<ReadyQueue>,
    delivery: DeliveryMode,
    socket_state: SocketState,
    reconnector: Reconnector,
    /// Fires at the next deadline.
    timer: DeadlineTimer,
    /// When the last frame arrived on this websocket, or when it was opened.
    last_frame_at: Instant,
    /// Set from the loss of a websocket until the executor is heard on another.
    backoff: Option<ReconnectBackoff>,
    /// Publishes the same state to users of the link.
    path: watch::Sender<LinkPathState>,
    is_closing: bool,
}

enum SocketState {
    Connected(Box<BinarySocket>),
    Reconnecting(BoxFuture<'static, Result<(BinarySocket, ReconnectBackoff), StreamCloseReason>>),
}

/// Why a websocket cannot be used further.
enum SocketFailure {
    /// The connection is lost; another one may work.
    Lost,
    /// The stream has ended.
    Fatal(StreamCloseReason),
}

impl From<io::Error> for SocketFailure {
    fn from(_: io::Error) -> Self {
        Self::Lost
    }
}

impl StreamDriver {
    pub(super) fn new(
        shared: Arc<StreamShared>,
        ready_queue: Arc<ReadyQueue>,
        delivery: DeliveryMode,
        socket: BinarySocket,
        reconnector: Reconnector,
        path: watch::Sender<LinkPathState>,
    ) -> Self {
        Self {
            shared,
            ready_queue,
            delivery,
            socket_state: SocketState::Connected(Box::new(socket)),
            reconnector,
            timer: DeadlineTimer::default(),
            last_frame_at: Instant::now(),
            backoff: None,
            path,
            is_closing: false,
        }
    }

    pub(super) async fn run(mut self) {
        let end = poll_fn(|cx| self.poll(cx)).await;
        tracing::debug!(stream = ?self.shared.id(), reason = %end, "stream ended");
        self.shared.close(end);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<StreamCloseReason> {
        self.ready_queue.register(cx.waker());
        loop {
            match &mut self.socket_state {
                SocketState::Connected(_) => match ready!(self.poll_connected(cx)) {
                    SocketFailure::Fatal(end) => return Poll::Ready(end),
                    SocketFailure::Lost if self.is_closing => {
                        return Poll::Ready(StreamCloseReason::Closed);
                    }
                    SocketFailure::Lost if self.delivery == DeliveryMode::Plain => {
                        return Poll::Ready(StreamCloseReason::Lost);
                    }
                    SocketFailure::Lost => {
                        self.shared.handle_disconnect(Instant::now().into_std());
                        self.set_path(LinkPathState::Lost);
                        let backoff = self
                            .backoff
                            .unwrap_or_else(|| self.reconnector.start_backoff());
                        self.socket_state = SocketState::Reconnecting(Box::pin(
                            self.reconnector.clone().reconnect(backoff),
                        ));
                    }
                },
                SocketState::Reconnecting(reconnecting) => {
                    if self.shared.is_detaching() {
                        return Poll::Ready(StreamCloseReason::Closed);
                    }
                    let (socket, backoff) = match ready!(reconnecting.as_mut().poll(cx)) {
                        Ok(opened) => opened,
                        Err(end) => return Poll::Ready(end),
                    };
                    self.backoff = Some(backoff);
                    self.socket_state = SocketState::Connected(Box::new(socket));
                    self.last_frame_at = Instant::now();
                    self.shared.handle_reconnect(self.last_frame_at.into_std());
                }
            }
        }
    }

    fn poll_connected(&mut self, cx: &mut Context<'_>) -> Poll<SocketFailure> {
        let mut read = 0;
        loop {
            let before = read;
            while read < MAX_READS_PER_POLL {
                match self.poll_read(cx) {
                    Poll::Ready(Ok(())) => read += 1,
                    Poll::Ready(Err(failure)) => return Poll::Ready(failure),
                    Poll::Pending => break,
                }
            }
            match self.send(cx) {
                Ok(Poll::Ready(())) if self.is_closing => {
                    return Poll::Ready(SocketFailure::Fatal(StreamCloseReason::Closed));
                }
                Ok(_) => {}
                Err(failure) => return Poll::Ready(failure),
            }
            match self.handle_timers(cx) {
                Ok(TimerState::Due) => continue,
                Ok(TimerState::Later) => {}
                Err(failure) => return Poll::Ready(failure),
            }
            if read == MAX_READS_PER_POLL {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if read == before {
                return Poll::Pending;
            }
        }
    }

    fn set_path(&self, path: LinkPathState) {
        self.path
            .send_if_modified(|before| std::mem::replace(before, path) != path);
    }

    /// Handles the next message of the relay, unless the receive buffer is full.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SocketFailure>> {
        // A stock executor has no flow control; leaving the socket unread applies backpressure.
        if self.shared.is_receive_buffer_full() {
            return Poll::Pending;
        }
        self.poll_next_message(cx)
    }

    /// Handles the next message of the relay.
    fn poll_next_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SocketFailure>> {
        let SocketState::Connected(socket) = &mut self.socket_state else {
            return Poll::Pending;
        };
        let message = match ready!(socket.reader.poll_message(cx)) {
            Ok(Some(RawMessage::Binary(message))) => message,
            Ok(Some(RawMessage::Text)) => return fatal("relay sent a text message"),
            Ok(None) | Err(_) => return Poll::Ready(Err(SocketFailure::Lost)),
        };
        let Ok(frame) = RelayFrame::decode(message) else {
            return fatal("relay sent an invalid frame");
        };
        if frame.stream_id != *self.shared.id() {
            return Poll::Ready(Ok(()));
        }
        match &frame.body {
            FrameBody::Reset { .. } => {
                return Poll::Ready(Err(SocketFailure::Fatal(StreamCloseReason::Reset)));
            }
            FrameBody::Handshake(_) => return fatal("executor sent a second handshake"),
            FrameBody::Data(_) if self.delivery == DeliveryMode::Plain && !frame.is_plain() => {
                return fatal("executor sent segments on a plain stream");
            }
            FrameBody::Data(_)
            | FrameBody::Ack
            | FrameBody::Resume { .. }
            | FrameBody::Heartbeat => {}
        }
        self.last_frame_at = Instant::now();
        if self.backoff.take().is_some() {
            self.set_path(LinkPathState::Connected);
        }
        let handled = self
            .shared
            .handle_frame(frame, self.last_frame_at.into_std());
        Poll::Ready(handled.map_err(|error| SocketFailure::Fatal(error.into())))
    }

    /// Sends the stream's frames until the socket blocks. Ready when everything is sent.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, SocketFailure> {
        for _ in 0..MAX_FLUSHES_PER_POLL {
            self.poll_keepalive(cx)?;
            let SocketState::Connected(socket) = &mut self.socket_state else {
                return Ok(Poll::Pending);
            };
            let mut progressed = false;
            // After a full buffer was flushed, the stream may send again.
            let full = socket.writer.buffered() >= SEND_BUFFER_BYTES;
            while socket.writer.buffered() < SEND_BUFFER_BYTES && self.ready_queue.pop().is_some() {
                progressed = true;
                let available = SEND_BUFFER_BYTES - socket.writer.buffered();
                let now = Instant::now().into_std();
                let push = |frame| socket.writer.push(frame);
                if self.shared.take_frames(now, available, push) == SendProgress::Done
                    && !self.is_closing
                {
                    self.is_closing = true;
                    if self.delivery == DeliveryMode::Reliable {
                        let reason = RESET_CLOSED.to_owned();
                        let last =
                            RelayFrame::new(self.shared.id().clone(), FrameBody::Reset { reason });
                        socket.writer.push(last.encode());
                    }
                }
            }
            if socket.writer.buffered() > 0 {
                match socket.writer.poll_flush(cx) {
                    Poll::Ready(flushed) => flushed?,
                    Poll::Pending => return Ok(Poll::Pending),
                }
            }
            if !progressed && !full {
                return Ok(Poll::Ready(()));
            }
        }
        cx.waker().wake_by_ref();
        Ok(Poll::Pending)
    }

    /// Runs the ping keepalive. Before a relay is dropped for a missing pong, inspects messages
    /// that have already arrived, because the pong may be behind them.
    fn poll_keepalive(&mut self, cx: &mut Context<'_>) -> Result<(), SocketFailure> {
        let mut inspected = 0;
        loop {
            let SocketState::Connected(socket) = &mut self.socket_state else {
                return Ok(());
            };
            let Poll::Ready(Err(error)) = socket.writer.poll_keepalive(cx) else {
                return Ok(());
            };
            if inspected == MAX_MESSAGES_BEFORE_PONG {
                return Err(error.into());
            }
            match self.poll_next_message(cx) {
                Poll::Ready(taken) => {
                    taken?;
                    inspected += 1;
                }
                // The pong may have been the last message that had arrived.
                Poll::Pending => inspected = MAX_MESSAGES_BEFORE_PONG,
            }
        }
    }

    /// Handles expired deadlines of the stream, and sets the timer to the next one.
    fn handle_timers(&mut self, cx: &mut Context<'_>) -> Result<TimerState, SocketFailure> {
        // Plain streams have no deadlines.
        let Some(next) = self.shared.poll_timeout() else {
            return Ok(TimerState::Later);
        };
        let now = Instant::now();
        let mut silent_at = self.last_frame_at + SILENCE_TIMEOUT;
        if let Some(backoff) = self.backoff {
            silent_at = silent_at.min(backoff.deadline);
        }
        if now >= silent_at {
            // If the backoff deadline has passed, the reconnect fails at once and ends the stream.
            return Err(SocketFailure::Lost);
        }
        if now.into_std() < next {
            self.timer.set(silent_at.min(next.into()), cx);
            return Ok(TimerState::Later);
        }
        let handled = self.shared.handle_timeout(now.into_std());
        handled.map_err(|error| SocketFailure::Fatal(error.into()))?;
        Ok(TimerState::Due)
    }
}

fn fatal(message: &'static str) -> Poll<Result<(), SocketFailure>> {
    Poll::Ready(Err(SocketFailure::Fatal(StreamCloseReason::Protocol(
        message,
    ))))
}

/// Delay before the second attempt; doubled each time.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum delay between attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Opens further websockets for a stream.
#[derive(Clone)]
pub(super) struct Reconnector {
    pub(super) grants: Arc<dyn GrantSource>,
    pub(super) options: HarnessOptions,
    /// Key of the executor at the other end of the stream.
    pub(super) executor_key: NoisePublicKey,
}

/// Backoff state of a reconnect. It lasts until a frame arrives from the executor: a relay that
/// accepts websockets but delivers nothing gets no more attempts than one that refuses them.
#[derive(Clone, Copy, Debug)]
struct ReconnectBackoff {
    pub(super) deadline: Instant,
    /// Delay before the next attempt. `None` before the first.
    delay: Option<Duration>,
}

impl ReconnectBackoff {
    async fn wait(&mut self) {
        if let Some(delay) = self.delay {
            sleep(delay).await;
        }
        let next = self.delay.map_or(INITIAL_BACKOFF, |delay| delay * 2);
        self.delay = Some(next.min(MAX_BACKOFF));
    }
}

impl Reconnector {
    /// Starts the backoff for a lost websocket.
    fn start_backoff(&self) -> ReconnectBackoff {
        ReconnectBackoff {
            deadline: Instant::now() + self.options.recovery,
            delay: None,
        }
    }

    /// Opens another websocket: at once, then with backoff until the deadline. Also returns the
    /// backoff, which continues if no frame arrives.
    async fn reconnect(
        self,
        mut backoff: ReconnectBackoff,
    ) -> Result<(BinarySocket, ReconnectBackoff), StreamCloseReason> {
        let deadline = backoff.deadline;
        let attempts = async {
            loop {
                backoff.wait().await;
                match self.attempt().await {
                    Ok(socket) => return Ok((socket, backoff)),
                    Err(AttemptFailure::Fatal(end)) => return Err(end),
                    Err(AttemptFailure::Transient(error)) => {
                        tracing::debug!(%error, "reconnect attempt failed");
                    }
                }
            }
        };
        let in_time = timeout_at(deadline, attempts).await;
        in_time.unwrap_or(Err(StreamCloseReason::Lost))
    }

    async fn attempt(&self) -> Result<BinarySocket, AttemptFailure> {
        let grant = self
            .grants
            .fetch()
            .await
            .map_err(AttemptFailure::grant_failure)?;
        if grant.executor_key != self.executor_key {
            return Err(AttemptFailure::Fatal(StreamCloseReason::ExecutorChanged));
        }
        // A relay error may be fixed by a fresh grant.
        let opened = dial(&grant, &self.options).await;
        opened.map_err(|error| match error.fault() {
            ConnectFault::Caller => {
                AttemptFailure::Fatal(StreamCloseReason::Refused(error_chain(&error)))
            }
            ConnectFault::Peer | ConnectFault::Transport => AttemptFailure::Transient(error),
        })
    }
}

/// Why an attempt failed.
enum AttemptFailure {
    Transient(ConnectError),
    Fatal(StreamCloseReason),
}

impl AttemptFailure {
    fn grant_failure(error: ConnectError) -> Self {
        if matches!(error, ConnectError::ExecutorChanged) {
            Self::Fatal(StreamCloseReason::ExecutorChanged)
        } else if error.is_transient() {
            Self::Transient(error)
        } else {
            Self::Fatal(StreamCloseReason::Refused(error_chain(&error)))
        }
    }
}
