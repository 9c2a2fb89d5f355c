//! HTTP requests: the answer first, then the parts of a body that is streamed.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_env::http::{HttpBody, HttpError, HttpFuture, HttpRequest as Asked};
use exec_wire::{
    http::{CancelHttpRequest, HttpBodyDelta, HttpRequest, HttpResponse, HttpResponseHeader},
    id::HttpRequestId,
    message::RequestId,
    method::notification,
    outgoing::Outgoing,
    process::Empty,
};
use futures_util::{
    future::{FutureExt, abortable},
    stream::StreamExt,
};
use tokio::sync::Semaphore;

use super::{Begun, Handlers, done};
use crate::{
    answer::Answer,
    meters::Outcome,
    outbox::Outbox,
    streams::{StreamPlace, Upload},
};

/// Largest part that is sent. The wire allows more, but answers wait while a part takes the outbox.
const PART_BYTES: usize = 256 << 10;

impl Handlers<'_> {
    pub(super) fn http_request(
        &self,
        id: RequestId,
        request: HttpRequest,
        body: Option<Bytes>,
    ) -> Begun {
        let bytes = body.as_ref().map_or(0, Bytes::len);
        let upload = match self.streams.admit_upload(bytes) {
            Ok(upload) => upload,
            Err(error) => return done(&id, Err::<Empty, _>(error)),
        };
        let request_id = request.request_id.clone();
        if !request.stream_response {
            return self.request_whole(id, &request_id, asked(request, body), upload);
        }
        match self.streams.admit(&request_id) {
            Ok(place) => self.request_streamed(id, asked(request, body), upload, place),
            Err(error) => done(&id, Err::<Empty, _>(error)),
        }
    }

    pub(super) fn cancel_http(&self, id: &RequestId, cancel: &CancelHttpRequest) -> Begun {
        self.streams.cancel(&cancel.request_id);
        done(id, Ok(Empty {}))
    }

    /// Lets a request be given up until it is answered.
    fn cancellable<T: Send + 'static>(
        &self,
        request_id: &HttpRequestId,
        response: HttpFuture<T>,
    ) -> impl Future<Output = Result<T, HttpError>> + Send + use<T> {
        let (response, abort) = abortable(response);
        let unanswered = self.streams.admit_request(request_id, abort);
        async move {
            let cancelled = || HttpError::Host("request was cancelled".to_owned());
            let response = response.await.unwrap_or_else(|_| Err(cancelled()));
            drop(unanswered);
            response
        }
    }

    fn request_whole(
        &self,
        id: RequestId,
        request_id: &HttpRequestId,
        request: Asked,
        upload: Upload,
    ) -> Begun {
        let response = self.session.environment.http.request(request);
        let response = self.cancellable(request_id, response);
        let answer = async move {
            let response = response.await;
            drop(upload);
            match response {
                Ok(response) => answer(&id, response.status, response.headers, response.body),
                Err(error) => Answer::error(&id, &error.into()),
            }
        };
        Begun::Waits(answer.boxed())
    }

    fn request_streamed(
        &self,
        id: RequestId,
        request: Asked,
        upload: Upload,
        place: StreamPlace,
    ) -> Begun {
        let response = self.session.environment.http.stream(request);
        let (outbox, turn) = (Arc::clone(self.outbox), Arc::clone(&self.streams.turn));
        let (head_id, head_outbox) = (id.clone(), Arc::clone(self.outbox));
        // It can be given up until the answer is sent: from then on, the body can.
        let head = async move {
            let response = response.await;
            drop(upload);
            let response = response?;
            let head = answer(&head_id, response.status, response.headers, Bytes::new());
            head_outbox.send(head.message).await;
            Ok(response.body)
        };
        let head = self.cancellable(place.id(), head.boxed());
        let begin = async move {
            let body = match head.await {
                Ok(body) => body,
                Err(error) => {
                    let refusal = Answer::error(&id, &error.into());
                    outbox.send_after(refusal.message, || place.release()).await;
                    return refusal.outcome;
                }
            };
            let place = Arc::new(place);
            let stream = Stream {
                seq: 0,
                outbox,
                turn,
                place: Arc::clone(&place),
            };
            place.keep(tokio::spawn(stream.run(body)).abort_handle());
            Outcome::Ok
        };
        Begun::Answers(begin.boxed())
    }
}

/// A body on its way to the client.
struct Stream {
    seq: u64,
    outbox: Arc<Outbox>,
    turn: Arc<Semaphore>,
    place: Arc<StreamPlace>,
}

impl Stream {
    /// Sends the parts as fast as they are taken, and then the end.
    async fn run(mut self, mut body: HttpBody) {
        let mut error = None;
        while let Some(part) = body.next().await {
            match part {
                Ok(part) => self.send(part).await,
                Err(failed) => {
                    error = Some(failed.to_string());
                    break;
                }
            }
        }
        // What it came by is closed before the end is told.
        drop(body);
        let end = self.delta(Bytes::new(), Some(error));
        self.outbox.send_after(end, || self.place.release()).await;
    }

    async fn send(&mut self, mut part: Bytes) {
        while !part.is_empty() {
            let piece = part.split_to(part.len().min(PART_BYTES));
            let delta = self.delta(piece, None);
            // The semaphore is never closed.
            let _turn = self.turn.acquire().await;
            self.outbox.send(delta).await;
        }
    }

    /// Numbers a part, or the end and why it came.
    fn delta(&mut self, data: Bytes, end: Option<Option<String>>) -> Outgoing {
        self.seq += 1;
        let delta = HttpBodyDelta {
            request_id: self.place.id().clone(),
            seq: self.seq,
            delta_base64: None,
            done: end.is_some(),
            error: end.flatten(),
        };
        Outgoing::notification_with_data(notification::HTTP_BODY_DELTA, &delta, "deltaBase64", data)
    }
}

fn asked(request: HttpRequest, body: Option<Bytes>) -> Asked {
    Asked {
        method: request.method,
        url: request.url,
        headers: request.headers,
        body,
        timeout: request.timeout_ms.map(Duration::from_millis),
        redirects: request.redirect_policy,
    }
}

fn answer(id: &RequestId, status: u16, headers: Vec<HttpResponseHeader>, body: Bytes) -> Answer {
    let head = HttpResponse {
        status,
        headers,
        body_base64: None,
    };
    Answer::with_data(id, &head, "bodyBase64", body)
}
