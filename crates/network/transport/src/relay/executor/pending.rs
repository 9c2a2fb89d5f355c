//! Handshakes that wait for the validator.

use std::{
    collections::{HashMap, VecDeque},
    task::{Context, Poll},
    time::Duration,
};

use exec_relay::{frame::StreamId, handshake::Responder, stream::Delivery};
use futures_util::future::BoxFuture;
use tokio::{
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use super::ValidationOutcome;

/// Validations that run at once: as the stock executor.
const MAX_PENDING: usize = 32;
/// How long one may take.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Streams whose harness has announced that it acknowledges, and that have not sent a handshake yet.
/// An announcement that is forgotten costs the stream its reliability, and nothing else.
const MAX_ANNOUNCED: usize = 128;

/// Harnesses on their way in.
#[derive(Debug, Default)]
pub(super) struct Pending {
    waiting: HashMap<StreamId, Waiting>,
    validations: JoinSet<(StreamId, Attempt, ValidationOutcome)>,
    attempts: u64,
    announced: VecDeque<StreamId>,
}

#[derive(Debug)]
struct Waiting {
    responder: Responder,
    delivery: Delivery,
    attempt: Attempt,
    validation: AbortHandle,
}

/// Tells a validation from an earlier one of the same stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Attempt(u64);

/// A validation that came to an end.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) stream_id: StreamId,
    pub(super) responder: Responder,
    pub(super) delivery: Delivery,
    pub(super) outcome: ValidationOutcome,
}

impl Pending {
    /// Notes that the harness of a stream acknowledges.
    pub(super) fn announce(&mut self, stream_id: StreamId) {
        if self.announced.contains(&stream_id) {
            return;
        }
        if self.announced.len() == MAX_ANNOUNCED {
            self.announced.pop_front();
        }
        self.announced.push_back(stream_id);
    }

    /// Returns how the stream of a handshake is to deliver, and forgets the announcement.
    pub(super) fn take_announced(&mut self, stream_id: &StreamId) -> Delivery {
        let found = self.announced.iter().position(|id| id == stream_id);
        match found.and_then(|index| self.announced.remove(index)) {
            Some(_) => Delivery::Reliable,
            None => Delivery::Plain,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_PENDING
    }

    /// Starts a validation.
    pub(super) fn start(
        &mut self,
        stream_id: StreamId,
        responder: Responder,
        delivery: Delivery,
        validation: BoxFuture<'static, ValidationOutcome>,
    ) {
        self.attempts += 1;
        let attempt = Attempt(self.attempts);
        let id = stream_id.clone();
        let validation = self.validations.spawn(async move {
            let outcome = timeout(VALIDATION_TIMEOUT, validation).await;
            (id, attempt, outcome.unwrap_or(ValidationOutcome::Refused))
        });
        let waiting = Waiting {
            responder,
            delivery,
            attempt,
            validation,
        };
        self.waiting.insert(stream_id, waiting);
    }

    /// Gives up a validation; tells whether there was one.
    pub(super) fn cancel(&mut self, stream_id: &StreamId) -> bool {
        let waiting = self.waiting.remove(stream_id);
        waiting.inspect(|one| one.validation.abort()).is_some()
    }

    /// Returns a validation that came to an end.
    pub(super) fn poll_judged(&mut self, cx: &mut Context<'_>) -> Poll<Judged> {
        while let Poll::Ready(Some(ended)) = self.validations.poll_join_next(cx) {
            let (stream_id, outcome) = match ended {
                Ok((stream_id, attempt, outcome)) if self.is_current(&stream_id, attempt) => {
                    (stream_id, outcome)
                }
                Ok(_) => continue,
                // What was cancelled is not waiting any more; a validator that panics says no.
                Err(error) => match self.task(error.id()) {
                    Some(stream_id) => (stream_id, ValidationOutcome::Refused),
                    None => continue,
                },
            };
            if let Some(waiting) = self.waiting.remove(&stream_id) {
                return Poll::Ready(Judged {
                    stream_id,
                    responder: waiting.responder,
                    delivery: waiting.delivery,
                    outcome,
                });
            }
        }
        Poll::Pending
    }

    fn is_current(&self, stream_id: &StreamId, attempt: Attempt) -> bool {
        let waiting = self.waiting.get(stream_id);
        waiting.is_some_and(|one| one.attempt == attempt)
    }

    fn task(&self, id: tokio::task::Id) -> Option<StreamId> {
        let mut waiting = self.waiting.iter();
        let found = waiting.find(|(_, one)| one.validation.id() == id);
        found.map(|(stream_id, _)| stream_id.clone())
    }
}
