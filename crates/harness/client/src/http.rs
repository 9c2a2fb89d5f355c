//! HTTP requests from a remote host.

mod body_queue;

pub(crate) use self::body_queue::{BodyDelivery, BodyQueue, HttpBodies};

use std::sync::Arc;

use bytes::Bytes;
use exec_env::http::{HttpBody, HttpClient, HttpError, HttpFuture, HttpRequest, HttpResponse};
use exec_wire::http;
use futures_util::{
    StreamExt,
    future::{Either, FutureExt},
};

use self::body_queue::BodyStream;
use crate::{
    client::{ExecServerClient, decode, malformed},
    client_shared::{DeferredRelease, ReleaseGuard},
    driver::{OpenedResource, ResponseSink},
    error::{ExecServerError, FaultParty},
};

/// Makes HTTP requests from a server's host.
///
/// A streamed body does not survive its connection, and fails with [`HttpError::Lagged`] if it is
/// read too slowly. A server without `http/request/cancel` continues dropped requests.
#[derive(Clone, Debug)]
pub struct RemoteHttpClient {
    client: ExecServerClient,
}

impl RemoteHttpClient {
    /// Creates a client over a connection.
    pub fn new(client: ExecServerClient) -> Self {
        Self { client }
    }

    /// Sends a request and waits for its response. Dropping the future cancels the request.
    async fn send_request(
        &self,
        request: HttpRequest,
        delivery: BodyDelivery,
    ) -> Result<(http::HttpResponse, AnsweredRequest), HttpError> {
        self.check(&request).await?;
        let shared = self.client.shared();
        let id = shared.next_http_request_id();
        let release_guard = ReleaseGuard::new(shared, DeferredRelease::Body(id.clone()));
        let body_queue = Arc::new(BodyQueue::new(id, delivery));
        let (params, body) = request_params(request, &body_queue);
        let resource = OpenedResource::Body(Arc::clone(&body_queue));
        let sink = |reply| ResponseSink::Cancellable(reply, resource);
        let call = match body {
            Some(body) => {
                Either::Left(
                    self.client
                        .call_with_data(params, "bodyBase64", body, None, sink),
                )
            }
            None => Either::Right(self.client.call_with_sink(params, sink)),
        };
        let raw_response = call.await.map_err(http_error)?;
        let response = decode::<http::HttpRequest>(&raw_response).map_err(http_error)?;
        let data = raw_response.data;
        Ok((
            response,
            AnsweredRequest {
                body_queue,
                release_guard,
                data,
            },
        ))
    }

    /// Rejects requests that the server would not understand or accept.
    async fn check(&self, request: &HttpRequest) -> Result<(), HttpError> {
        let max_bytes = self.client.max_data_bytes();
        let body = request.body.as_ref();
        if body.is_some_and(|body| body.len() > max_bytes) {
            let text = format!("body is too large to send: limit is {max_bytes} bytes");
            return Err(HttpError::Refused(text));
        }
        let named = request
            .headers
            .iter()
            .find(|header| header.value_env_var.is_some());
        if let Some(header) = named {
            let info = self.client.info().await.map_err(http_error)?;
            // A server without support would send the header without its value.
            if !info.capabilities.http_header_env_vars {
                let name = &header.name;
                let text =
                    format!("header {name}: this server does not support variables in headers");
                return Err(HttpError::Refused(text));
            }
        }
        Ok(())
    }
}

/// An answered request.
struct AnsweredRequest {
    body_queue: Arc<BodyQueue>,
    release_guard: ReleaseGuard,
    /// The body, if it was sent raw.
    data: Option<Bytes>,
}

impl HttpClient for RemoteHttpClient {
    fn request(&self, request: HttpRequest) -> HttpFuture<HttpResponse<Bytes>> {
        let this = self.clone();
        async move {
            let (response, answered_request) =
                this.send_request(request, BodyDelivery::Whole).await?;
            let embedded = response.body_base64.map(|body| body.0);
            let missing = || {
                http_error(malformed::<http::HttpRequest>(
                    &"missing field `bodyBase64`",
                ))
            };
            Ok(HttpResponse {
                status: response.status,
                headers: response.headers,
                body: embedded.or(answered_request.data).ok_or_else(missing)?,
            })
        }
        .boxed()
    }

    fn stream(&self, request: HttpRequest) -> HttpFuture<HttpResponse<HttpBody>> {
        let this = self.clone();
        async move {
            let (response, answered_request) =
                this.send_request(request, BodyDelivery::Streamed).await?;
            let stream = BodyStream {
                body: answered_request.body_queue,
                _release_guard: answered_request.release_guard,
                client: this.client,
                waiting: None,
            };
            Ok(HttpResponse {
                status: response.status,
                headers: response.headers,
                body: stream.boxed(),
            })
        }
        .boxed()
    }
}

fn request_params(
    request: HttpRequest,
    body_queue: &BodyQueue,
) -> (http::HttpRequest, Option<Bytes>) {
    let params = http::HttpRequest {
        method: request.method,
        url: request.url,
        headers: request.headers,
        body_base64: None,
        // Rounded up, so that a limit below one millisecond does not become zero.
        timeout_ms: request
            .timeout
            .map(|limit| u64::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)),
        redirect_policy: request.redirects,
        request_id: body_queue.id().clone(),
        stream_response: body_queue.delivery() == BodyDelivery::Streamed,
    };
    (params, request.body)
}

fn http_error(error: ExecServerError) -> HttpError {
    match error.into_disconnect() {
        Ok(reason) => HttpError::Disconnected(reason),
        Err(ExecServerError::Remote(error)) => error.into(),
        Err(error @ ExecServerError::Malformed { .. }) => HttpError::Protocol(error.to_string()),
        Err(error) if error.fault() == FaultParty::Caller => HttpError::Refused(error.to_string()),
        Err(error) => HttpError::Host(error.to_string()),
    }
}
