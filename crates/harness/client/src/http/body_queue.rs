//! A streamed body on its way to whoever reads it.
//!
//! Invariant: at most [`QUEUED_BYTES`] wait. The wire has one window for a connection, not one for
//! each body, so a reader that lags further behind loses its body: to stop reading would hold up
//! everything else that the connection carries.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use exec_env::http::HttpError;
use exec_wire::{http::HttpBodyDelta, id::HttpRequestId, limits};
use futures_util::Stream;

use crate::{
    client::ExecServerClient,
    client_shared::{Kept, Waiting},
};

/// What may wait to be read, in bytes: as the stock client.
pub(crate) const QUEUED_BYTES: usize = 16 << 20;
/// What a part counts beside its bytes, so that the number of parts has a bound as well.
const PART_BYTES: usize = 128;

/// Shared by the driver, which fills it, and the stream, which empties it.
#[derive(Debug)]
pub(crate) struct QueuedBody {
    id: HttpRequestId,
    delivery: Delivery,
    state: Mutex<State>,
}

/// How a body is wanted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Delivery {
    /// With the answer.
    Whole,
    /// Part by part.
    Streamed,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the last part.
    last: u64,
    queue: VecDeque<Bytes>,
    held: usize,
    /// How it ended, until that was told.
    end: Option<Result<(), HttpError>>,
    reader: Option<Waker>,
}

/// What has become of a body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Flow {
    /// More follows.
    Open,
    /// The server has ended it.
    Ended,
    /// It has failed here.
    Failed,
}

impl QueuedBody {
    pub(crate) fn new(id: HttpRequestId, delivery: Delivery) -> Self {
        Self {
            id,
            delivery,
            state: Mutex::default(),
        }
    }

    pub(crate) fn id(&self) -> &HttpRequestId {
        &self.id
    }

    pub(crate) fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Takes a part, or the end.
    pub(crate) fn handle_delta(&self, delta: HttpBodyDelta, data: Bytes) -> Flow {
        let mut state = self.lock();
        let (expected, most) = (state.last + 1, limits::MAX_HTTP_DELTA_BYTES);
        let broken = if delta.seq != expected {
            let seq = delta.seq;
            let text =
                format!("parts of a body are numbered one by one: {expected} was due, not {seq}");
            Some(HttpError::Protocol(text))
        } else if data.len() > most {
            let text = format!(
                "a part of a body has at most {most} bytes, not {}",
                data.len()
            );
            Some(HttpError::Protocol(text))
        } else if !data.is_empty() && state.held + weight(&data) > QUEUED_BYTES {
            Some(HttpError::Lagged(QUEUED_BYTES))
        } else {
            None
        };
        if let Some(error) = broken {
            drop(state);
            self.fail(error);
            return Flow::Failed;
        }
        state.last = delta.seq;
        if !data.is_empty() {
            state.held += weight(&data);
            state.queue.push_back(data);
        }
        let flow = match (delta.error, delta.done) {
            (Some(error), _) => {
                state.end = Some(Err(HttpError::Host(error)));
                Flow::Ended
            }
            (None, true) => {
                state.end = Some(Ok(()));
                Flow::Ended
            }
            (None, false) => Flow::Open,
        };
        wake(state);
        flow
    }

    /// Nothing more will come. What came is still read.
    pub(crate) fn fail(&self, error: HttpError) {
        let mut state = self.lock();
        state.end = Some(Err(error));
        wake(state);
    }

    fn poll_part(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut state = self.lock();
        if let Some(part) = state.queue.pop_front() {
            state.held -= weight(&part);
            return Poll::Ready(Some(Ok(part)));
        }
        match &mut state.end {
            Some(end) => {
                let end = std::mem::replace(end, Ok(()));
                Poll::Ready(end.err().map(Err))
            }
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; if something did, the state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stream of a body. The server is told to end it when it is dropped.
#[derive(Debug)]
pub(super) struct BodyStream {
    pub(super) body: Arc<QueuedBody>,
    pub(super) _kept: Kept,
    /// Whoever reads keeps the connection open.
    pub(super) client: ExecServerClient,
    /// Whoever waits has the connection read.
    pub(super) waiting: Option<Waiting>,
}

impl Stream for BodyStream {
    type Item = Result<Bytes, HttpError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let part = self.body.poll_part(cx);
        self.waiting = match part {
            Poll::Ready(_) => None,
            Poll::Pending => Some(self.client.hub().wait()),
        };
        part
    }
}

fn weight(part: &Bytes) -> usize {
    part.len() + PART_BYTES
}

fn wake(mut state: MutexGuard<'_, State>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> QueuedBody {
        QueuedBody::new(HttpRequestId::new("http-1").unwrap(), Delivery::Streamed)
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

    fn poll(body: &QueuedBody) -> Poll<Option<Result<Bytes, HttpError>>> {
        body.poll_part(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn parts_come_in_their_order_and_then_the_end() {
        let body = body();
        assert_eq!(poll(&body), Poll::Pending);
        let (one, two) = (Bytes::from_static(b"1"), Bytes::from_static(b"2"));
        assert_eq!(body.handle_delta(delta(1), one.clone()), Flow::Open);
        assert_eq!(body.handle_delta(delta(2), two.clone()), Flow::Open);
        assert_eq!(body.handle_delta(end(3, None), Bytes::new()), Flow::Ended);
        assert_eq!(poll(&body), Poll::Ready(Some(Ok(one))));
        assert_eq!(poll(&body), Poll::Ready(Some(Ok(two))));
        assert_eq!(poll(&body), Poll::Ready(None));
        assert_eq!(poll(&body), Poll::Ready(None));
    }

    #[test]
    fn an_error_is_told_once_and_behind_what_came() {
        let body = body();
        body.handle_delta(delta(1), Bytes::from_static(b"1"));
        let ended = body.handle_delta(end(2, Some("cut off")), Bytes::new());
        assert_eq!(ended, Flow::Ended);
        assert!(matches!(poll(&body), Poll::Ready(Some(Ok(_)))));
        let error = HttpError::Host("cut off".to_owned());
        assert_eq!(poll(&body), Poll::Ready(Some(Err(error))));
        assert_eq!(poll(&body), Poll::Ready(None));
    }

    #[test]
    fn a_gap_and_a_repetition_break_the_body() {
        for seq in [1, 3] {
            let body = body();
            body.handle_delta(delta(1), Bytes::new());
            assert_eq!(body.handle_delta(delta(seq), Bytes::new()), Flow::Failed);
            let text = format!("parts of a body are numbered one by one: 2 was due, not {seq}");
            assert_eq!(
                poll(&body),
                Poll::Ready(Some(Err(HttpError::Protocol(text))))
            );
        }
    }

    #[test]
    fn a_part_that_is_too_large_breaks_the_body() {
        let body = body();
        let data = Bytes::from(vec![0; limits::MAX_HTTP_DELTA_BYTES + 1]);
        assert_eq!(body.handle_delta(delta(1), data), Flow::Failed);
        assert!(matches!(
            poll(&body),
            Poll::Ready(Some(Err(HttpError::Protocol(_))))
        ));
    }

    #[test]
    fn what_nobody_reads_is_bounded() {
        let body = body();
        let data = Bytes::from(vec![0; limits::MAX_HTTP_DELTA_BYTES]);
        let taken =
            (1..).take_while(|seq| body.handle_delta(delta(*seq), data.clone()) == Flow::Open);
        assert_eq!(taken.count(), 15);
        for _ in 0..15 {
            assert!(matches!(poll(&body), Poll::Ready(Some(Ok(_)))));
        }
        let error = poll(&body);
        assert_eq!(
            error,
            Poll::Ready(Some(Err(HttpError::Lagged(QUEUED_BYTES))))
        );
    }
}
