//! Handlers of `http/request`: the response first, then the parts of a streamed body. Requests and
//! streams end with their connection.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use exec_env::http::{HttpBody, HttpError, HttpFuture, HttpRequest as OutboundRequest};
use exec_wire::{
    error::RpcError,
    http::{CancelHttpRequest, HttpBodyDelta, HttpRequest, HttpResponse, HttpResponseHeader},
    id::HttpRequestId,
    limits,
    message::RequestId,
    method::notification,
    outgoing_message::OutgoingMessage,
    process::EmptyResult,
};
use futures_util::{
    future::{self, FutureExt, abortable},
    stream::StreamExt,
};
use tokio::{sync::Semaphore, task::AbortHandle};

use super::{Dispatch, HandlerContext, RequestResult, respond_now};
use crate::{connection_files::AbortOnDrop, send_queue::SendQueue};

/// Maximum size of a body part. The wire allows more, but responses wait while a part occupies the
/// send queue.
const BODY_PART_BYTES: usize = 256 << 10;

impl HandlerContext<'_> {
    pub(super) fn http_request(
        &self,
        id: RequestId,
        mut request: HttpRequest,
    ) -> Result<Dispatch, RpcError> {
        let body = request.body_base64.take().map(|body| body.0);
        let bytes = body.as_ref().map_or(0, Bytes::len);
        let upload = self.streams.admit_upload(bytes)?;
        let request_id = request.request_id.clone();
        if !request.stream_response {
            let request = outbound_request(request, body);
            return Ok(self.request_buffered(id, &request_id, request, upload));
        }
        let reservation = self.streams.admit(&request_id)?;
        let request = outbound_request(request, body);
        Ok(self.request_streamed(id, request, upload, reservation))
    }

    pub(super) fn cancel_http(&self, id: &RequestId, cancel: &CancelHttpRequest) -> Dispatch {
        self.streams.cancel(&cancel.request_id);
        respond_now(id, Ok(EmptyResult {}))
    }

    /// Makes a request cancellable until its response arrives.
    fn cancellable<T: Send + 'static>(
        &self,
        request_id: &HttpRequestId,
        response: HttpFuture<T>,
    ) -> impl Future<Output = Result<T, HttpError>> + Send + use<T> {
        let (response, abort) = abortable(response);
        let cancellable = self.streams.admit_request(request_id, abort);
        async move {
            let cancelled = || HttpError::Host("request was cancelled".to_owned());
            let response = response.await.unwrap_or_else(|_| Err(cancelled()));
            drop(cancellable);
            response
        }
    }

    fn request_buffered(
        &self,
        id: RequestId,
        request_id: &HttpRequestId,
        request: OutboundRequest,
        upload: UploadPermit,
    ) -> Dispatch {
        let response = self.session.environment.http.request(request);
        let response = self.cancellable(request_id, response);
        let encoded = async move {
            let response = response.await;
            drop(upload);
            match response {
                Ok(response) => {
                    http_response(&id, response.status, response.headers, response.body)
                }
                Err(error) => RequestResult::error(&id, &error.into()),
            }
        };
        Dispatch::Waiting(encoded.boxed())
    }

    fn request_streamed(
        &self,
        id: RequestId,
        request: OutboundRequest,
        upload: UploadPermit,
        reservation: StreamReservation,
    ) -> Dispatch {
        let response = self.session.environment.http.stream(request);
        let (send_queue, send_lock) = (
            Arc::clone(self.send_queue),
            Arc::clone(&self.streams.send_lock),
        );
        let (head_id, head_queue) = (id.clone(), Arc::clone(self.send_queue));
        // Cancellation covers the head until it is sent, and the body stream afterwards.
        let head = async move {
            let response = response.await;
            drop(upload);
            let response = response?;
            let head = http_response(&head_id, response.status, response.headers, Bytes::new());
            Ok((head.send(&head_queue).await, response.body))
        };
        let head = self.cancellable(reservation.id(), head.boxed());
        let run = async move {
            let (result, body) = match head.await {
                Ok(head) => head,
                Err(error) => {
                    let result = RequestResult::error(&id, &error.into());
                    let release = || reservation.release();
                    return result.send_with(&send_queue, release).await;
                }
            };
            let reservation = Arc::new(reservation);
            let stream = BodySender {
                seq: 0,
                send_queue,
                send_lock,
                reservation: Arc::clone(&reservation),
            };
            reservation.attach_task(tokio::spawn(stream.run(body)).abort_handle());
            result
        };
        Dispatch::Waiting(run.boxed())
    }
}

/// Sends one streamed body to the client.
struct BodySender {
    seq: u64,
    send_queue: Arc<SendQueue>,
    send_lock: Arc<Semaphore>,
    reservation: Arc<StreamReservation>,
}

impl BodySender {
    /// Sends the parts with backpressure from the send queue, then the end.
    async fn run(mut self, mut body: HttpBody) {
        let mut error = None;
        while let Some(part) = body.next().await {
            match part {
                Ok(part) => self.send(part).await,
                Err(body_error) => {
                    error = Some(body_error.to_string());
                    break;
                }
            }
        }
        // Close the upstream connection before announcing the end.
        drop(body);
        let end = self.delta(Bytes::new(), Some(error));
        self.send_queue
            .send_with(end, || self.reservation.release())
            .await;
    }

    async fn send(&mut self, mut part: Bytes) {
        while !part.is_empty() {
            let part_data = part.split_to(part.len().min(BODY_PART_BYTES));
            let delta = self.delta(part_data, None);
            // The semaphore is never closed.
            let _permit = self.send_lock.acquire().await;
            self.send_queue.send(delta).await;
        }
    }

    /// Builds the next body delta: data, or the end with an optional error.
    fn delta(&mut self, data: Bytes, end: Option<Option<String>>) -> OutgoingMessage {
        self.seq += 1;
        let delta = HttpBodyDelta {
            request_id: self.reservation.id().clone(),
            seq: self.seq,
            delta_base64: None,
            done: end.is_some(),
            error: end.flatten(),
        };
        OutgoingMessage::notification(notification::HTTP_BODY_DELTA, &delta)
            .with_data("deltaBase64", data)
    }
}

fn outbound_request(request: HttpRequest, body: Option<Bytes>) -> OutboundRequest {
    OutboundRequest {
        method: request.method,
        url: request.url,
        headers: request.headers,
        body,
        timeout: request.timeout_ms.map(Duration::from_millis),
        redirects: request.redirect_policy,
    }
}

fn http_response(
    id: &RequestId,
    status: u16,
    headers: Vec<HttpResponseHeader>,
    body: Bytes,
) -> RequestResult {
    let head = HttpResponse {
        status,
        headers,
        body_base64: None,
    };
    RequestResult::with_data(id, &head, "bodyBase64", body)
}

/// HTTP requests and body streams of one connection.
#[derive(Debug)]
pub(crate) struct HttpStreams {
    active: Mutex<HttpStreamState>,
    uploads: AtomicUsize,
    /// Serialises body parts of all streams, so that a response waits for one part at most.
    pub(crate) send_lock: Arc<Semaphore>,
}

impl Default for HttpStreams {
    fn default() -> Self {
        Self {
            active: Mutex::default(),
            uploads: AtomicUsize::new(0),
            send_lock: Arc::new(Semaphore::new(1)),
        }
    }
}

#[derive(Debug, Default)]
struct HttpStreamState {
    /// Active streams. The number distinguishes reuses of an id. The task is absent until the
    /// response has arrived.
    by_id: BTreeMap<HttpRequestId, (u64, Option<AbortOnDrop>)>,
    /// Requests without a response yet, by id and number.
    cancellable: BTreeMap<(HttpRequestId, u64), future::AbortHandle>,
    next: u64,
}

impl HttpStreams {
    fn lock(&self) -> MutexGuard<'_, HttpStreamState> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a request id for a streamed body.
    pub(crate) fn admit(
        self: &Arc<Self>,
        id: &HttpRequestId,
    ) -> Result<StreamReservation, RpcError> {
        let mut active = self.lock();
        if active.by_id.contains_key(id) {
            let text = format!("http/request streamResponse requestId `{id}` is already active");
            return Err(RpcError::invalid_params(text));
        }
        if active.by_id.len() >= limits::MAX_HTTP_STREAMS {
            let max = limits::MAX_HTTP_STREAMS;
            let text = format!("at most {max} streamed bodies are allowed per connection");
            return Err(RpcError::invalid_request(text));
        }
        let number = active.next;
        active.next += 1;
        active.by_id.insert(id.clone(), (number, None));
        Ok(StreamReservation {
            streams: Arc::downgrade(self),
            id: id.clone(),
            number,
        })
    }

    /// Registers a request for cancellation until the guard is dropped.
    pub(crate) fn admit_request(
        self: &Arc<Self>,
        id: &HttpRequestId,
        abort: future::AbortHandle,
    ) -> CancellableRequest {
        let mut active = self.lock();
        let key = (id.clone(), active.next);
        active.next += 1;
        active.cancellable.insert(key.clone(), abort);
        CancellableRequest {
            streams: Arc::downgrade(self),
            key,
        }
    }

    /// Cancels the pending requests with this id and ends its body stream.
    pub(crate) fn cancel(&self, id: &HttpRequestId) {
        let mut active = self.lock();
        let same_id = (id.clone(), 0)..=(id.clone(), u64::MAX);
        for abort in active.cancellable.range(same_id).map(|(_, abort)| abort) {
            abort.abort();
        }
        if active.by_id.get(id).is_some_and(|(_, task)| task.is_some()) {
            active.by_id.remove(id);
        }
    }

    /// Reserves memory for a request body until the permit is dropped. A single body is always
    /// admitted: the message size limit bounds it.
    pub(crate) fn admit_upload(self: &Arc<Self>, bytes: usize) -> Result<UploadPermit, RpcError> {
        let upload = UploadPermit {
            streams: Arc::clone(self),
            bytes,
        };
        let before = self.uploads.fetch_add(bytes, Ordering::Relaxed);
        let max = limits::MAX_MESSAGE_BYTES;
        if before > 0 && before + bytes > max {
            let text = format!("bodies of pending requests must not exceed {max} bytes");
            return Err(RpcError::invalid_request(text));
        }
        Ok(upload)
    }
}

/// A reserved id of a streamed body. Dropping it releases the id.
#[derive(Debug)]
pub(crate) struct StreamReservation {
    /// Weak, because the streaming task owns this value and the table aborts the task.
    streams: Weak<HttpStreams>,
    id: HttpRequestId,
    number: u64,
}

impl StreamReservation {
    pub(crate) fn id(&self) -> &HttpRequestId {
        &self.id
    }

    /// Ties the streaming task to the connection.
    pub(crate) fn attach_task(&self, task: AbortHandle) {
        // Aborts the task if the connection has ended already.
        let task = AbortOnDrop(task);
        if let Some(streams) = self.streams.upgrade()
            && let Some((number, slot)) = streams.lock().by_id.get_mut(&self.id)
            && *number == self.number
        {
            *slot = Some(task);
        }
    }

    /// Releases the id.
    pub(crate) fn release(&self) {
        let Some(streams) = self.streams.upgrade() else {
            return;
        };
        let mut active = streams.lock();
        if active
            .by_id
            .get(&self.id)
            .is_some_and(|(number, _)| *number == self.number)
        {
            active.by_id.remove(&self.id);
        }
    }
}

impl Drop for StreamReservation {
    fn drop(&mut self) {
        self.release();
    }
}

/// Registration of a cancellable request.
#[derive(Debug)]
pub(crate) struct CancellableRequest {
    streams: Weak<HttpStreams>,
    key: (HttpRequestId, u64),
}

impl Drop for CancellableRequest {
    fn drop(&mut self) {
        if let Some(streams) = self.streams.upgrade() {
            streams.lock().cancellable.remove(&self.key);
        }
    }
}

/// Memory reservation for a request body.
#[derive(Debug)]
pub(crate) struct UploadPermit {
    streams: Arc<HttpStreams>,
    bytes: usize,
}

impl Drop for UploadPermit {
    fn drop(&mut self) {
        self.streams
            .uploads
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> HttpRequestId {
        HttpRequestId::new(&format!("http-{number}")).unwrap()
    }

    #[test]
    fn request_id_is_reserved_until_its_stream_ends() {
        let streams = Arc::new(HttpStreams::default());
        let reservation = streams.admit(&id(1)).unwrap();
        let duplicate = streams.admit(&id(1)).unwrap_err();
        assert_eq!(
            duplicate,
            RpcError::invalid_params(
                "http/request streamResponse requestId `http-1` is already active"
            )
        );
        drop(reservation);
        assert!(streams.admit(&id(1)).is_ok());
    }

    #[test]
    fn concurrent_body_streams_are_limited() {
        let streams = Arc::new(HttpStreams::default());
        let reservations: Vec<_> = (0..limits::MAX_HTTP_STREAMS)
            .map(|number| streams.admit(&id(number)).unwrap())
            .collect();
        assert!(streams.admit(&id(reservations.len())).is_err());
    }

    #[test]
    fn upload_permit_is_held_until_the_response() {
        let streams = Arc::new(HttpStreams::default());
        let large = streams.admit_upload(limits::MAX_MESSAGE_BYTES).unwrap();
        assert!(streams.admit_upload(1).is_err());
        drop(large);
        assert!(streams.admit_upload(1).is_ok());
    }
}
