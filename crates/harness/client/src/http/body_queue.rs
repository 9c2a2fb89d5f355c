//! Queue between the driver and the reader of a streamed body, and the bodies of a connection.
//!
//! Invariant: at most [`MAX_QUEUED_BODY_BYTES`] are queued. There is one flow-control window per
//! connection, not per body, so a body with a slow reader fails: pausing would block everything
//! else on the connection.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use exec_env::{environment::DisconnectReason, http::HttpError};
use exec_wire::{http::HttpBodyDelta, id::HttpRequestId, limits};
use futures_util::Stream;

use crate::{
    client::ExecServerClient,
    client_shared::{ReleaseGuard, WaiterGuard},
    driver::OpenedResource,
    polled_state::PolledState,
};

/// Maximum size of the queue, as in the stock client.
pub(crate) const MAX_QUEUED_BODY_BYTES: usize = 16 << 20;
/// Overhead of a chunk, which also bounds the number of chunks.
const CHUNK_OVERHEAD_BYTES: usize = 128;

/// Filled by the driver and emptied by the stream.
#[derive(Debug)]
pub(crate) struct BodyQueue {
    id: HttpRequestId,
    delivery: BodyDelivery,
    state: PolledState<QueueState>,
}

/// How a body is delivered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BodyDelivery {
    /// With the response.
    Whole,
    /// In chunks.
    Streamed,
}

#[derive(Debug, Default)]
struct QueueState {
    /// The number of the last chunk.
    last: u64,
    queue: VecDeque<Bytes>,
    queued_bytes: usize,
    /// How the body ended, until the reader has seen it.
    end: Option<Result<(), HttpError>>,
}

/// State of a body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BodyState {
    /// More chunks follow.
    Open,
    /// The server has ended it.
    Ended,
    /// It has failed locally.
    Failed,
}

impl BodyQueue {
    pub(crate) fn new(id: HttpRequestId, delivery: BodyDelivery) -> Self {
        Self {
            id,
            delivery,
            state: PolledState::default(),
        }
    }

    pub(crate) fn id(&self) -> &HttpRequestId {
        &self.id
    }

    pub(crate) fn delivery(&self) -> BodyDelivery {
        self.delivery
    }

    /// Handles a chunk, or the end.
    pub(crate) fn handle_delta(&self, delta: HttpBodyDelta, data: Bytes) -> BodyState {
        self.state.update(|state| state.handle_delta(delta, data))
    }

    /// Fails the body. Queued chunks can still be read.
    pub(crate) fn fail(&self, error: HttpError) {
        self.state.update(|state| state.end = Some(Err(error)));
    }

    fn poll_chunk(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        self.state.poll(cx, QueueState::poll_chunk)
    }
}

impl QueueState {
    fn handle_delta(&mut self, delta: HttpBodyDelta, data: Bytes) -> BodyState {
        let (expected, max_bytes) = (self.last + 1, limits::MAX_HTTP_DELTA_BYTES);
        let failure = if delta.seq != expected {
            let seq = delta.seq;
            let text = format!("unexpected body chunk {seq}: expected {expected}");
            Some(HttpError::Protocol(text))
        } else if data.len() > max_bytes {
            let text = format!("body chunk has {} bytes: limit is {max_bytes}", data.len());
            Some(HttpError::Protocol(text))
        } else if !data.is_empty() && self.queued_bytes + weight(&data) > MAX_QUEUED_BODY_BYTES {
            Some(HttpError::Lagged(MAX_QUEUED_BODY_BYTES))
        } else {
            None
        };
        if let Some(error) = failure {
            self.end = Some(Err(error));
            return BodyState::Failed;
        }
        self.last = delta.seq;
        if !data.is_empty() {
            self.queued_bytes += weight(&data);
            self.queue.push_back(data);
        }
        self.end = match (delta.error, delta.done) {
            (Some(error), _) => Some(Err(HttpError::Host(error))),
            (None, true) => Some(Ok(())),
            (None, false) => return BodyState::Open,
        };
        BodyState::Ended
    }

    fn poll_chunk(&mut self) -> Poll<Option<Result<Bytes, HttpError>>> {
        if let Some(chunk) = self.queue.pop_front() {
            self.queued_bytes -= weight(&chunk);
            return Poll::Ready(Some(Ok(chunk)));
        }
        match &mut self.end {
            Some(end) => {
                let end = std::mem::replace(end, Ok(()));
                Poll::Ready(end.err().map(Err))
            }
            None => Poll::Pending,
        }
    }
}

/// The stream of a body. Dropping it cancels the body.
#[derive(Debug)]
pub(super) struct BodyStream {
    pub(super) body: Arc<BodyQueue>,
    pub(super) _release_guard: ReleaseGuard,
    /// A reader keeps the connection open.
    pub(super) client: ExecServerClient,
    /// A waiting reader keeps the driver reading.
    pub(super) waiting: Option<WaiterGuard>,
}

impl Stream for BodyStream {
    type Item = Result<Bytes, HttpError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let chunk = self.body.poll_chunk(cx);
        self.waiting = match chunk {
            Poll::Ready(_) => None,
            Poll::Pending => Some(self.client.shared().register_waiter()),
        };
        chunk
    }
}

fn weight(chunk: &Bytes) -> usize {
    chunk.len() + CHUNK_OVERHEAD_BYTES
}

/// Unanswered HTTP requests and open body streams. Data for any other request is ignored.
#[derive(Debug, Default)]
pub(crate) struct HttpBodies {
    table: BTreeMap<HttpRequestId, Arc<BodyQueue>>,
}

impl HttpBodies {
    /// Registers a body before it is requested, because chunks may follow the response immediately.
    pub(crate) fn register(&mut self, resource: &OpenedResource) {
        if let OpenedResource::Body(body) = resource {
            self.table.insert(body.id().clone(), Arc::clone(body));
        }
    }

    /// Removes an answered or failed request, unless its body is streamed.
    pub(crate) fn handle_response(&mut self, resource: &OpenedResource, answered: bool) {
        if let OpenedResource::Body(body) = resource
            && !(answered && body.delivery() == BodyDelivery::Streamed)
        {
            self.remove(body.id());
        }
    }

    /// Removes a body. Returns whether it existed.
    pub(crate) fn remove(&mut self, id: &HttpRequestId) -> bool {
        self.table.remove(id).is_some()
    }

    /// Passes a chunk to its body. Returns the id of a body that failed and must be cancelled.
    pub(crate) fn handle_delta(
        &mut self,
        delta: HttpBodyDelta,
        data: Bytes,
    ) -> Option<HttpRequestId> {
        let body = self.table.get(&delta.request_id)?;
        let (id, state) = (body.id().clone(), body.handle_delta(delta, data));
        if state != BodyState::Open {
            self.table.remove(&id);
        }
        (state == BodyState::Failed).then_some(id)
    }

    /// Fails all bodies with the connection, because they cannot be resumed.
    pub(crate) fn disconnect(&mut self, reason: &DisconnectReason) {
        for body in std::mem::take(&mut self.table).into_values() {
            body.fail(HttpError::Disconnected(reason.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn body() -> BodyQueue {
        BodyQueue::new(
            HttpRequestId::new("http-1").unwrap(),
            BodyDelivery::Streamed,
        )
    }

    fn delta(seq: u64) -> HttpBodyDelta {
        HttpBodyDelta {
            request_id: HttpRequestId::new("http-1").unwrap(),
            seq,
            delta_base64: None,
            done: false,
            error: None,
        }
    }

    fn end(seq: u64, error: Option<&str>) -> HttpBodyDelta {
        HttpBodyDelta {
            done: true,
            error: error.map(str::to_owned),
            ..delta(seq)
        }
    }

    fn poll(body: &BodyQueue) -> Poll<Option<Result<Bytes, HttpError>>> {
        body.poll_chunk(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn chunks_arrive_in_order_followed_by_the_end() {
        let body = body();
        assert_eq!(poll(&body), Poll::Pending);
        let (one, two) = (Bytes::from_static(b"1"), Bytes::from_static(b"2"));
        assert_eq!(body.handle_delta(delta(1), one.clone()), BodyState::Open);
        assert_eq!(body.handle_delta(delta(2), two.clone()), BodyState::Open);
        assert_eq!(
            body.handle_delta(end(3, None), Bytes::new()),
            BodyState::Ended
        );
        assert_eq!(poll(&body), Poll::Ready(Some(Ok(one))));
        assert_eq!(poll(&body), Poll::Ready(Some(Ok(two))));
        assert_eq!(poll(&body), Poll::Ready(None));
        assert_eq!(poll(&body), Poll::Ready(None));
    }

    #[test]
    fn error_is_reported_once_after_the_queued_chunks() {
        let body = body();
        body.handle_delta(delta(1), Bytes::from_static(b"1"));
        let ended = body.handle_delta(end(2, Some("cut off")), Bytes::new());
        assert_eq!(ended, BodyState::Ended);
        assert!(matches!(poll(&body), Poll::Ready(Some(Ok(_)))));
        let error = HttpError::Host("cut off".to_owned());
        assert_eq!(poll(&body), Poll::Ready(Some(Err(error))));
        assert_eq!(poll(&body), Poll::Ready(None));
    }

    #[test]
    fn missing_or_repeated_chunk_fails_the_body() {
        for seq in [1, 3] {
            let body = body();
            body.handle_delta(delta(1), Bytes::new());
            assert_eq!(
                body.handle_delta(delta(seq), Bytes::new()),
                BodyState::Failed
            );
            let text = format!("unexpected body chunk {seq}: expected 2");
            assert_eq!(
                poll(&body),
                Poll::Ready(Some(Err(HttpError::Protocol(text))))
            );
        }
    }

    #[test]
    fn oversized_chunk_fails_the_body() {
        let body = body();
        let data = Bytes::from(vec![0; limits::MAX_HTTP_DELTA_BYTES + 1]);
        assert_eq!(body.handle_delta(delta(1), data), BodyState::Failed);
        assert!(matches!(
            poll(&body),
            Poll::Ready(Some(Err(HttpError::Protocol(_))))
        ));
    }

    #[test]
    fn unread_body_is_bounded() {
        let body = body();
        let data = Bytes::from(vec![0; limits::MAX_HTTP_DELTA_BYTES]);
        let chunks =
            (1..).take_while(|seq| body.handle_delta(delta(*seq), data.clone()) == BodyState::Open);
        assert_eq!(chunks.count(), 15);
        for _ in 0..15 {
            assert!(matches!(poll(&body), Poll::Ready(Some(Ok(_)))));
        }
        let error = poll(&body);
        assert_eq!(
            error,
            Poll::Ready(Some(Err(HttpError::Lagged(MAX_QUEUED_BODY_BYTES))))
        );
    }
}
