//! The driver of one executor connection: reads frames, sends from ready streams, writes, and runs
//! the timers. Also the handshakes that await validation, and the rate limiter for failed ones.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    io,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use exec_relay::{
    frame::{FrameBody, RESET_CLOSED, RESET_PROTOCOL_ERROR, RelayFrame, StreamId},
    handshake::{HandshakeScope, NoiseResponder},
    stream::{DeliveryMode, RelayStream},
};
use futures_util::future::BoxFuture;
use tokio::{
    sync::mpsc::error::TrySendError,
    task::{AbortHandle, JoinSet},
    time::{self, timeout},
};

use super::{
    ExecutorDisconnect, HarnessClaim, RelayExecutor, StreamTable, ValidationOutcome,
    keepalive::{Keepalive, KeepaliveAction},
    lock,
};
use crate::{
    relay::{
        DeadlineTimer, MAX_FLUSHES_PER_POLL, MAX_READS_PER_POLL, SEND_BUFFER_BYTES,
        STREAM_QUANTUM_BYTES, StreamCloseReason, TimerState,
        stream_shared::{SendProgress, StreamShared, stream_link},
    },
    websocket::socket::{BinarySocket, RawMessage},
};

pub(super) struct ExecutorConnection<'a> {
    executor: &'a RelayExecutor,
    registration_id: String,
    failure_limiter: HandshakeFailureLimiter,
    handshakes: PendingHandshakes,
    streams: &'a Mutex<StreamTable>,
    socket: BinarySocket,
    /// Fires at the next deadline.
    timer: DeadlineTimer,
    keepalive: Keepalive,
}

impl<'a> ExecutorConnection<'a> {
    pub(super) fn new(
        executor: &'a RelayExecutor,
        streams: &'a Mutex<StreamTable>,
        socket: BinarySocket,
        registration_id: String,
    ) -> Self {
        Self {
            executor,
            registration_id,
            failure_limiter: HandshakeFailureLimiter::default(),
            handshakes: PendingHandshakes::default(),
            streams,
            socket,
            timer: DeadlineTimer::default(),
            keepalive: Keepalive::new(time::Instant::now().into_std()),
        }
    }

    pub(super) async fn run(mut self) -> ExecutorDisconnect {
        let executor = self.executor;
        tokio::select! {
            ended = poll_fn(|cx| self.poll(cx)) => ended,
            () = executor.links.closed() => ExecutorDisconnect::ReceiverClosed,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ExecutorDisconnect> {
        let guard = self.streams;
        let mut streams = lock(guard);
        streams.ready_queue.register(cx.waker());
        let mut read = 0;
        loop {
            let before = read;
            while read < MAX_READS_PER_POLL {
                match self.socket.reader.poll_message(cx) {
                    Poll::Ready(Ok(Some(RawMessage::Binary(message)))) => {
                        // Invalid frames and text messages are ignored.
                        if let Ok(frame) = RelayFrame::decode(message) {
                            self.handle_frame(&mut streams, frame);
                        }
                    }
                    Poll::Ready(Ok(Some(RawMessage::Text))) => {}
                    Poll::Ready(Ok(None)) => return Poll::Ready(ExecutorDisconnect::Closed),
                    Poll::Ready(Err(error)) => return Poll::Ready(ExecutorDisconnect::Read(error)),
                    Poll::Pending => break,
                }
                read += 1;
            }
            while let Poll::Ready(validation) = self.handshakes.poll_validation(cx) {
                self.handle_validation(&mut streams, validation);
            }
            let sent = self.send(&mut streams, cx);
            if let Err(error) = sent {
                return Poll::Ready(ExecutorDisconnect::Write(error));
            }
            match self.handle_timers(&mut streams, cx) {
                Ok(TimerState::Due) => continue,
                Ok(TimerState::Later) => {}
                Err(error) => return Poll::Ready(ExecutorDisconnect::Write(error)),
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

    /// Sends from ready streams in turn until the socket blocks.
    fn send(&mut self, streams: &mut StreamTable, cx: &mut Context<'_>) -> io::Result<()> {
        for _ in 0..MAX_FLUSHES_PER_POLL {
            let now = time::Instant::now().into_std();
            let mut progressed = false;
            // After a full buffer was flushed, ready streams may send again.
            let full = self.socket.writer.buffered() >= SEND_BUFFER_BYTES;
            while self.socket.writer.buffered() < SEND_BUFFER_BYTES
                && let Some(shared) = streams.ready_queue.pop()
            {
                progressed = true;
                let writer = &mut self.socket.writer;
                let progress =
                    shared.take_frames(now, STREAM_QUANTUM_BYTES, |frame| writer.push(frame));
                if progress == SendProgress::Done && streams.finish(&shared) {
                    self.reset(shared.id().clone());
                }
            }
            if let Poll::Ready(alive) = self.socket.writer.poll_keepalive(cx) {
                alive?;
            }
            if self.socket.writer.buffered() > 0 {
                match self.socket.writer.poll_flush(cx) {
                    Poll::Ready(flushed) => flushed?,
                    Poll::Pending => return Ok(()),
                }
            }
            if !progressed && !full {
                return Ok(());
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Handles expired deadlines of the streams and of the connection, and sets the timer to the
    /// next one.
    fn handle_timers(
        &mut self,
        streams: &mut StreamTable,
        cx: &mut Context<'_>,
    ) -> io::Result<TimerState> {
        let now = time::Instant::now().into_std();
        self.keepalive
            .handle_received(self.socket.reader.bytes_received(), now);
        // The keepalive runs only for reliable streams: plain ones would not survive a reconnect.
        let has_reliable = streams.has_active(DeliveryMode::Reliable);
        let keepalive = has_reliable.then(|| self.keepalive.poll_timeout());
        let Some(next) = keepalive.into_iter().chain(streams.poll_timeout()).min() else {
            return Ok(TimerState::Later);
        };
        if now < next {
            self.timer.set(next.into(), cx);
            return Ok(TimerState::Later);
        }
        if has_reliable {
            match self.keepalive.handle_timeout(now) {
                KeepaliveAction::Idle => {}
                KeepaliveAction::Ping => self.socket.writer.ping(),
                KeepaliveAction::Disconnect => {
                    let message = "relay did not answer the keepalive ping";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                }
            }
        }
        for shared in streams.due_streams(now) {
            if let Err(error) = shared.handle_timeout(now) {
                tracing::debug!(stream = ?shared.id(), %error, "stream failed");
                streams.remove(shared.id(), error.into());
                self.reset(shared.id().clone());
            }
        }
        streams.expire(now);
        Ok(TimerState::Due)
    }

    /// Resets a stream that has ended or does not exist. Best effort: skipped while the send buffer
    /// is full, so that memory stays bounded.
    pub(super) fn reset(&mut self, stream_id: StreamId) {
        let reason = RESET_PROTOCOL_ERROR.to_owned();
        if self.socket.writer.buffered() < SEND_BUFFER_BYTES {
            self.push(&RelayFrame::new(stream_id, FrameBody::Reset { reason }));
        }
    }

    pub(super) fn push(&mut self, frame: &RelayFrame) {
        self.socket.writer.push(frame.encode());
    }
}

impl ExecutorConnection<'_> {
    /// Handles a valid frame.
    pub(super) fn handle_frame(&mut self, streams: &mut StreamTable, frame: RelayFrame) {
        let now = time::Instant::now().into_std();
        match &frame.body {
            FrameBody::Handshake(message) => {
                let message = message.clone();
                self.handle_handshake(streams, frame.stream_id, &message);
            }
            FrameBody::Reset { reason } => {
                self.handshakes.cancel(&frame.stream_id);
                if reason == RESET_CLOSED {
                    streams.remove(&frame.stream_id, StreamCloseReason::Reset);
                } else {
                    streams.park(&frame.stream_id, now);
                }
            }
            FrameBody::Data(_)
            | FrameBody::Resume { .. }
            | FrameBody::Ack
            | FrameBody::Heartbeat
                if streams.contains(&frame.stream_id) =>
            {
                self.deliver(streams, frame);
            }
            FrameBody::Data(_) => {
                if self.handshakes.cancel(&frame.stream_id) {
                    self.failure_limiter.handle_failure(now);
                }
                self.reset(frame.stream_id);
            }
            FrameBody::Resume { next_seq } => {
                // Before a handshake it is meaningless; otherwise a harness resumes too late.
                if *next_seq > 0 || frame.ack > 0 || frame.ack_bits > 0 {
                    self.reset(frame.stream_id);
                }
            }
            FrameBody::Ack if frame.is_announcement() => self.handshakes.announce(frame.stream_id),
            FrameBody::Ack | FrameBody::Heartbeat => {}
        }
    }

    /// Delivers a frame to its stream.
    fn deliver(&mut self, streams: &mut StreamTable, frame: RelayFrame) {
        let now = time::Instant::now().into_std();
        let stream_id = frame.stream_id.clone();
        let Some(entry) = streams.active(&stream_id, now) else {
            return;
        };
        // A stock executor treats such a frame as invalid and drops it.
        if entry.delivery == DeliveryMode::Plain && !frame.is_plain() {
            return;
        }
        if let Err(error) = entry.shared.handle_frame(frame, now) {
            tracing::debug!(stream = ?stream_id, %error, "stream failed");
            streams.remove(&stream_id, error.into());
            self.reset(stream_id);
        }
    }

    fn handle_handshake(&mut self, streams: &mut StreamTable, stream_id: StreamId, message: &[u8]) {
        let now = time::Instant::now().into_std();
        let delivery = self.handshakes.take_delivery(&stream_id);
        if !self.failure_limiter.allows_handshake(now) {
            return self.reset(stream_id);
        }
        if self.handshakes.cancel(&stream_id) {
            self.failure_limiter.handle_failure(now);
            return self.reset(stream_id);
        }
        // Knowing the id of an active stream must not harm it, and an unvalidated harness must not
        // evict a parked one.
        if streams.contains(&stream_id) || self.handshakes.is_full() || !streams.has_capacity() {
            return self.reset(stream_id);
        }
        let scope = HandshakeScope {
            environment_id: &self.executor.environment_id,
            registration_id: &self.registration_id,
            stream_id: stream_id.as_str(),
        };
        let responder = match NoiseResponder::read(&self.executor.identity, scope, message) {
            Ok(responder) => responder,
            Err(error) => {
                tracing::debug!(stream = ?stream_id, %error, "handshake failed");
                self.failure_limiter.handle_failure(now);
                return self.reset(stream_id);
            }
        };
        let claim = HarnessClaim {
            registration_id: self.registration_id.clone(),
            stream_id: stream_id.clone(),
            harness_key: responder.harness_key().clone(),
            authorization: responder.authorization().to_owned(),
        };
        let validation = self.executor.validator.validate(claim);
        self.handshakes
            .start(stream_id, responder, delivery, validation);
    }

    /// Completes a validated handshake: opens the stream or resets it.
    fn handle_validation(&mut self, streams: &mut StreamTable, validation: Validation) {
        let now = time::Instant::now().into_std();
        let Validation {
            stream_id,
            responder,
            delivery,
            outcome,
        } = validation;
        match outcome {
            ValidationOutcome::Accepted => {}
            ValidationOutcome::Refused => {
                self.failure_limiter.handle_failure(now);
                return self.reset(stream_id);
            }
            ValidationOutcome::ExecutorUnauthenticated => {
                self.failure_limiter.handle_failure(now);
                return self.reject_authentication(stream_id, responder);
            }
        }
        // Other streams may have been opened during validation.
        if !streams.has_capacity() {
            return self.reset(stream_id);
        }
        let harness_key = responder.harness_key().clone();
        let (message, channel) = match responder.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(stream = ?stream_id, %error, "handshake failed");
                self.failure_limiter.handle_failure(now);
                return self.reset(stream_id);
            }
        };
        let stream = RelayStream::new(stream_id.clone(), channel, delivery, now);
        let shared = StreamShared::new(stream_id.clone(), stream, Arc::clone(&streams.ready_queue));
        let link = stream_link(Arc::clone(&shared), format!("relay stream {stream_id:?}"));
        if let Err(TrySendError::Full(_) | TrySendError::Closed(_)) =
            self.executor.links.try_send(link)
        {
            tracing::warn!("new stream refused: the queue of links is full or closed");
            return self.reset(stream_id);
        }
        if delivery == DeliveryMode::Reliable {
            self.push(&RelayFrame::announcement(stream_id.clone()));
        }
        self.push(&RelayFrame::new(stream_id, FrameBody::Handshake(message)));
        streams.insert(shared, delivery, harness_key);
    }

    /// Completes the handshake with the message that the registry rejects this executor. The stream
    /// is not opened, so data on it is reset.
    fn reject_authentication(&mut self, stream_id: StreamId, responder: NoiseResponder) {
        match responder.reject_authentication() {
            Ok(message) => self.push(&RelayFrame::new(stream_id, FrameBody::Handshake(message))),
            Err(error) => {
                tracing::debug!(stream = ?stream_id, %error, "handshake failed");
                self.reset(stream_id);
            }
        }
    }
}

/// Maximum number of concurrent validations, as in the stock executor.
const MAX_PENDING: usize = 32;
/// Timeout of one validation.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of streams that announced acknowledgements before their handshake. A forgotten
/// announcement only makes the stream plain.
const MAX_ANNOUNCED: usize = 128;

/// Handshakes that await the validator.
#[derive(Debug, Default)]
struct PendingHandshakes {
    pending: HashMap<StreamId, PendingHandshake>,
    validations: JoinSet<ValidationOutcome>,
    announced: VecDeque<StreamId>,
}

#[derive(Debug)]
struct PendingHandshake {
    responder: NoiseResponder,
    delivery: DeliveryMode,
    validation: AbortHandle,
}

/// A completed validation.
#[derive(Debug)]
pub(super) struct Validation {
    pub(super) stream_id: StreamId,
    pub(super) responder: NoiseResponder,
    pub(super) delivery: DeliveryMode,
    pub(super) outcome: ValidationOutcome,
}

impl PendingHandshakes {
    /// Records that the harness of a stream supports acknowledgements.
    fn announce(&mut self, stream_id: StreamId) {
        if self.announced.contains(&stream_id) {
            return;
        }
        if self.announced.len() == MAX_ANNOUNCED {
            self.announced.pop_front();
        }
        self.announced.push_back(stream_id);
    }

    /// Returns the delivery mode for a handshake and removes the announcement.
    fn take_delivery(&mut self, stream_id: &StreamId) -> DeliveryMode {
        let position = self.announced.iter().position(|id| id == stream_id);
        match position.and_then(|index| self.announced.remove(index)) {
            Some(_) => DeliveryMode::Reliable,
            None => DeliveryMode::Plain,
        }
    }

    fn is_full(&self) -> bool {
        self.pending.len() >= MAX_PENDING
    }

    /// Starts a validation.
    pub(super) fn start(
        &mut self,
        stream_id: StreamId,
        responder: NoiseResponder,
        delivery: DeliveryMode,
        validation: BoxFuture<'static, ValidationOutcome>,
    ) {
        let validation = self.validations.spawn(async move {
            let outcome = timeout(VALIDATION_TIMEOUT, validation).await;
            outcome.unwrap_or(ValidationOutcome::Refused)
        });
        let pending = PendingHandshake {
            responder,
            delivery,
            validation,
        };
        self.pending.insert(stream_id, pending);
    }

    /// Cancels a validation and returns whether there was one.
    fn cancel(&mut self, stream_id: &StreamId) -> bool {
        let pending = self.pending.remove(stream_id);
        pending.inspect(|one| one.validation.abort()).is_some()
    }

    /// Returns the next completed validation.
    fn poll_validation(&mut self, cx: &mut Context<'_>) -> Poll<Validation> {
        while let Poll::Ready(Some(ended)) = self.validations.poll_join_next_with_id(cx) {
            // A panicking validator counts as a refusal.
            let (task, outcome) =
                ended.unwrap_or_else(|error| (error.id(), ValidationOutcome::Refused));
            // A cancelled validation is no longer pending.
            let of_task = |_: &StreamId, one: &mut PendingHandshake| one.validation.id() == task;
            if let Some((stream_id, pending)) = self.pending.extract_if(of_task).next() {
                return Poll::Ready(Validation {
                    stream_id,
                    responder: pending.responder,
                    delivery: pending.delivery,
                    outcome,
                });
            }
        }
        Poll::Pending
    }
}

/// Failures after which handshakes are refused for a while, as in the stock executor.
const MAX_FAILURES: u32 = 8;
/// How long handshakes are refused. Active streams are not affected.
const COOLDOWN: Duration = Duration::from_secs(10);

/// Rate limiter for failed handshakes of one connection. Successes do not reset the count.
#[derive(Debug, Default)]
struct HandshakeFailureLimiter {
    failures: u32,
    blocked_until: Option<Instant>,
}

impl HandshakeFailureLimiter {
    /// Returns whether handshakes are accepted. Refused attempts do not extend the cooldown.
    fn allows_handshake(&mut self, now: Instant) -> bool {
        if self.blocked_until.is_some_and(|until| now >= until) {
            self.blocked_until = None;
        }
        self.blocked_until.is_none()
    }

    /// Counts a failure.
    fn handle_failure(&mut self, now: Instant) {
        if !self.allows_handshake(now) {
            return;
        }
        self.failures += 1;
        if self.failures == MAX_FAILURES {
            self.failures = 0;
            self.blocked_until = Some(now + COOLDOWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighth_failure_blocks_for_ten_seconds_and_resets_the_count() {
        let start = Instant::now();
        let mut limiter = HandshakeFailureLimiter::default();
        for round in 0..2 {
            let now = start + COOLDOWN * round;
            for _ in 0..7 {
                limiter.handle_failure(now);
                assert!(limiter.allows_handshake(now));
            }
            limiter.handle_failure(now);
            assert!(!limiter.allows_handshake(now));
            let late = now + COOLDOWN - Duration::from_millis(1);
            limiter.handle_failure(late);
            assert!(!limiter.allows_handshake(late));
            assert!(limiter.allows_handshake(now + COOLDOWN));
        }
    }
}
