//! Handshakes that await validation, and the rate limiter for failed ones.

use std::{
    collections::{HashMap, VecDeque},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use exec_relay::{frame::StreamId, handshake::NoiseResponder, stream::DeliveryMode};
use futures_util::future::BoxFuture;
use tokio::{
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use super::ValidationOutcome;

/// Maximum number of concurrent validations, as in the stock executor.
const MAX_PENDING: usize = 32;
/// Timeout of one validation.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of streams that announced acknowledgements before their handshake. A forgotten
/// announcement only makes the stream plain.
const MAX_ANNOUNCED: usize = 128;

/// Handshakes that await the validator.
#[derive(Debug, Default)]
pub(super) struct PendingHandshakes {
    pending: HashMap<StreamId, PendingHandshake>,
    validations: JoinSet<(StreamId, HandshakeAttempt, ValidationOutcome)>,
    attempts: u64,
    announced: VecDeque<StreamId>,
}

#[derive(Debug)]
struct PendingHandshake {
    responder: NoiseResponder,
    delivery: DeliveryMode,
    attempt: HandshakeAttempt,
    validation: AbortHandle,
}

/// Distinguishes a validation from an earlier one of the same stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct HandshakeAttempt(u64);

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
    pub(super) fn announce(&mut self, stream_id: StreamId) {
        if self.announced.contains(&stream_id) {
            return;
        }
        if self.announced.len() == MAX_ANNOUNCED {
            self.announced.pop_front();
        }
        self.announced.push_back(stream_id);
    }

    /// Returns the delivery mode for a handshake and removes the announcement.
    pub(super) fn take_delivery(&mut self, stream_id: &StreamId) -> DeliveryMode {
        let found = self.announced.iter().position(|id| id == stream_id);
        match found.and_then(|index| self.announced.remove(index)) {
            Some(_) => DeliveryMode::Reliable,
            None => DeliveryMode::Plain,
        }
    }

    pub(super) fn is_full(&self) -> bool {
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
        self.attempts += 1;
        let attempt = HandshakeAttempt(self.attempts);
        let id = stream_id.clone();
        let validation = self.validations.spawn(async move {
            let outcome = timeout(VALIDATION_TIMEOUT, validation).await;
            (id, attempt, outcome.unwrap_or(ValidationOutcome::Refused))
        });
        let pending = PendingHandshake {
            responder,
            delivery,
            attempt,
            validation,
        };
        self.pending.insert(stream_id, pending);
    }

    /// Cancels a validation and returns whether there was one.
    pub(super) fn cancel(&mut self, stream_id: &StreamId) -> bool {
        let pending = self.pending.remove(stream_id);
        pending.inspect(|one| one.validation.abort()).is_some()
    }

    /// Returns the next completed validation.
    pub(super) fn poll_validation(&mut self, cx: &mut Context<'_>) -> Poll<Validation> {
        while let Poll::Ready(Some(ended)) = self.validations.poll_join_next(cx) {
            let (stream_id, outcome) = match ended {
                Ok((stream_id, attempt, outcome)) if self.is_current(&stream_id, attempt) => {
                    (stream_id, outcome)
                }
                Ok(_) => continue,
                // A cancelled validation is no longer pending; a panicking validator counts as a
                // refusal.
                Err(error) => match self.stream_of_task(error.id()) {
                    Some(stream_id) => (stream_id, ValidationOutcome::Refused),
                    None => continue,
                },
            };
            if let Some(pending) = self.pending.remove(&stream_id) {
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

    fn is_current(&self, stream_id: &StreamId, attempt: HandshakeAttempt) -> bool {
        let pending = self.pending.get(stream_id);
        pending.is_some_and(|one| one.attempt == attempt)
    }

    fn stream_of_task(&self, id: tokio::task::Id) -> Option<StreamId> {
        let mut pending = self.pending.iter();
        let found = pending.find(|(_, one)| one.validation.id() == id);
        found.map(|(stream_id, _)| stream_id.clone())
    }
}

/// Failures after which handshakes are refused for a while, as in the stock executor.
const MAX_FAILURES: u32 = 8;
/// How long handshakes are refused. Active streams are not affected.
const COOLDOWN: Duration = Duration::from_secs(10);

/// Rate limiter for failed handshakes of one connection. Successes do not reset the count.
#[derive(Debug, Default)]
pub(super) struct HandshakeFailureLimiter {
    failures: u32,
    blocked_until: Option<Instant>,
}

impl HandshakeFailureLimiter {
    /// Returns whether handshakes are accepted. Refused attempts do not extend the cooldown.
    pub(super) fn allows_handshake(&mut self, now: Instant) -> bool {
        if self.blocked_until.is_some_and(|until| now >= until) {
            self.blocked_until = None;
        }
        self.blocked_until.is_none()
    }

    /// Counts a failure.
    pub(super) fn handle_failure(&mut self, now: Instant) {
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
