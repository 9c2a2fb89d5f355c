//! HTTP requests from a remote host.

mod body_queue;

pub(crate) use self::body_queue::{Delivery, Flow, QueuedBody};

use std::sync::Arc;

use bytes::Bytes;
use exec_env::http::{HttpBody, HttpClient, HttpError, HttpFuture, HttpRequest, HttpResponse};
use exec_transport::link::Encoding;
use exec_wire::{http, limits};
use futures_util::{
    StreamExt,
    future::{Either, FutureExt},
};

use self::body_queue::BodyStream;
use crate::{
    client::{ExecServerClient, decode, malformed},
    client_shared::{Kept, Released},
    driver::{Opens, Waiter},
    error::{ExecServerError, Fault},
};

/// Room for what a message holds beside the body: the URL and the headers.
const HEAD_BYTES: usize = 1 << 20;

/// Makes requests from the host of an exec-server.
///
/// A streamed body does not survive its connection, and one that is read too slowly fails with
/// [`HttpError::Lagged`]. A server that does not know `http/request/cancel` goes on with a request that
/// was dropped.
#[derive(Clone, Debug)]
pub struct RemoteHttpClient {
    client: ExecServerClient,
}

impl RemoteHttpClient {
    /// Asks over a connection.
    pub fn new(client: ExecServerClient) -> Self {
        Self { client }
    }

    /// Sends a request and waits for its answer. Dropping the future has the server give it up.
    async fn ask(
        &self,
        request: HttpRequest,
        delivery: Delivery,
    ) -> Result<(http::HttpResponse, Asked), HttpError> {
        self.check(&request).await?;
        let hub = self.client.hub();
        let id = hub.http_request_id();
        let kept = Kept::new(hub, Released::Body(id.clone()));
        let queued = Arc::new(QueuedBody::new(id, delivery));
        let (params, body) = params(request, &queued);
        let opens = Opens::Body(Arc::clone(&queued));
        let waiter = |reply| Waiter::File(reply, opens);
        let asked = match body {
            Some(body) => {
                Either::Left(
                    self.client
                        .ask_with_data(params, "bodyBase64", body, waiter),
                )
            }
            None => Either::Right(self.client.ask(params, waiter)),
        };
        let answered = asked.await.map_err(http_error)?;
        let response = decode::<http::HttpRequest>(&answered).map_err(http_error)?;
        let data = answered.data;
        Ok((response, Asked { queued, kept, data }))
    }

    /// Refuses what the server would not understand, or not take.
    async fn check(&self, request: &HttpRequest) -> Result<(), HttpError> {
        let most = match self.client.encoding() {
            Encoding::Binary => limits::MAX_MESSAGE_BYTES - HEAD_BYTES,
            Encoding::Text => (limits::MAX_MESSAGE_BYTES - HEAD_BYTES) / 4 * 3,
        };
        if request.body.as_ref().is_some_and(|body| body.len() > most) {
            let text = format!("body is too large to send: limit is {most} bytes");
            return Err(HttpError::Refused(text));
        }
        let named = request
            .headers
            .iter()
            .find(|header| header.value_env_var.is_some());
        if let Some(header) = named {
            let info = self.client.info().await.map_err(http_error)?;
            // A server that does not know them would send the header without.
            if !info.capabilities.http_header_env_vars {
                let name = &header.name;
                let text = format!("header {name}: this server puts no variables into headers");
                return Err(HttpError::Refused(text));
            }
        }
        Ok(())
    }
}

/// What an answered request leaves.
struct Asked {
    queued: Arc<QueuedBody>,
    kept: Kept,
    /// The body, if it travelled raw.
    data: Option<Bytes>,
}

impl HttpClient for RemoteHttpClient {
    fn request(&self, request: HttpRequest) -> HttpFuture<HttpResponse<Bytes>> {
        let this = self.clone();
        async move {
            let (response, asked) = this.ask(request, Delivery::Whole).await?;
            let inside = response.body_base64.map(|body| body.0);
            let missing = || {
                http_error(malformed::<http::HttpRequest>(
                    &"missing field `bodyBase64`",
                ))
            };
            Ok(HttpResponse {
                status: response.status,
                headers: response.headers,
                body: inside.or(asked.data).ok_or_else(missing)?,
            })
        }
        .boxed()
    }

    fn stream(&self, request: HttpRequest) -> HttpFuture<HttpResponse<HttpBody>> {
        let this = self.clone();
        async move {
            let (response, asked) = this.ask(request, Delivery::Streamed).await?;
            let stream = BodyStream {
                body: asked.queued,
                _kept: asked.kept,
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

fn params(request: HttpRequest, queued: &QueuedBody) -> (http::HttpRequest, Option<Bytes>) {
    let params = http::HttpRequest {
        method: request.method,
        url: request.url,
        headers: request.headers,
        body_base64: None,
        // Rounded up: a limit below a millisecond is not none.
        timeout_ms: request
            .timeout
            .map(|limit| u64::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)),
        redirect_policy: request.redirects,
        request_id: queued.id().clone(),
        stream_response: queued.delivery() == Delivery::Streamed,
    };
    (params, request.body)
}

fn http_error(error: ExecServerError) -> HttpError {
    match error.disconnect() {
        Ok(gone) => HttpError::Disconnected(gone),
        Err(ExecServerError::Remote(error)) => error.into(),
        Err(error @ ExecServerError::Malformed { .. }) => HttpError::Protocol(error.to_string()),
        Err(error) if error.fault() == Fault::Caller => HttpError::Refused(error.to_string()),
        Err(error) => HttpError::Host(error.to_string()),
    }
}
