//! HTTP requests from this machine.
//!
//! Certificates and the connection pool are loaded by the first request. Header variables and
//! proxies come from an explicit environment. Bodies are passed through as received, compressed or
//! not. Elsewhere: the wire format (`exec-service`) and requests from other environments
//! (`exec-client`).

mod connection_pool;

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::OsStrExt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use exec_env::{
    credential::CredentialVariable,
    http::{HttpBody, HttpClient, HttpError, HttpFuture, HttpRequest, HttpResponse},
};
use exec_wire::{
    error::error_chain,
    http::{HttpHeader, HttpResponseHeader, RedirectPolicy},
    limits,
};
use futures_util::{
    future::FutureExt,
    stream::{StreamExt, try_unfold},
};
use reqwest::{
    Method, RequestBuilder, Response, Url,
    header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, HeaderMap, HeaderName, HeaderValue},
};
use tokio::{
    sync::OnceCell,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use self::connection_pool::{ConnectionPool, RedirectMode};

/// Sends HTTP requests from this machine. Clones share connections.
#[derive(Clone, Default)]
pub struct LocalHttpClient {
    shared: Arc<ClientState>,
}

#[derive(Default)]
struct ClientState {
    /// Host environment: header variables, proxies and certificates.
    env: BTreeMap<OsString, OsString>,
    /// Built by the first request.
    pool: OnceCell<ConnectionPool>,
    memory: Arc<BodyMemory>,
}

impl LocalHttpClient {
    /// Creates a client that takes header variables and proxies from `env`.
    pub fn new(env: BTreeMap<OsString, OsString>) -> Self {
        Self {
            shared: Arc::new(ClientState {
                env,
                ..ClientState::default()
            }),
        }
    }

    /// Sends a request and waits for the response headers.
    async fn send(self, request: HttpRequest) -> Result<(Response, RequestDeadline), HttpError> {
        let deadline = RequestDeadline::after(request.timeout);
        let request = validate_request(request, &self.shared.env)?;
        let pool = deadline.apply(self.pool()).await??;
        let response = deadline.apply(request.into_builder(pool).send()).await?;
        Ok((response.map_err(request_error)?, deadline))
    }

    async fn pool(&self) -> Result<&ConnectionPool, HttpError> {
        let build = || async {
            let shared = Arc::clone(&self.shared);
            // Reads certificate files.
            let built = spawn_blocking(move || ConnectionPool::new(&shared.env)).await;
            built.map_err(|error| HttpError::Host(error.to_string()))?
        };
        self.shared.pool.get_or_try_init(build).await
    }
}

impl HttpClient for LocalHttpClient {
    fn request(&self, request: HttpRequest) -> HttpFuture<HttpResponse<Bytes>> {
        let client = self.clone();
        async move {
            let memory = Arc::clone(&client.shared.memory);
            let (response, deadline) = client.send(request).await?;
            let (status, headers) = head(&response);
            let body = read_whole_body(response, deadline, memory).await?;
            Ok(HttpResponse {
                status,
                headers,
                body,
            })
        }
        .boxed()
    }

    fn stream(&self, request: HttpRequest) -> HttpFuture<HttpResponse<HttpBody>> {
        let client = self.clone();
        async move {
            let (response, deadline) = client.send(request).await?;
            let (status, headers) = head(&response);
            Ok(HttpResponse {
                status,
                headers,
                body: stream_body(response, deadline),
            })
        }
        .boxed()
    }
}

impl fmt::Debug for LocalHttpClient {
    /// Omits the environment, which holds secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalHttpClient").finish_non_exhaustive()
    }
}

fn head(response: &Response) -> (u16, Vec<HttpResponseHeader>) {
    (response.status().as_u16(), headers(response.headers()))
}

/// Returns the headers with textual values.
fn headers(headers: &HeaderMap) -> Vec<HttpResponseHeader> {
    let text = headers.iter().filter_map(|(name, value)| {
        Some(HttpResponseHeader {
            name: name.as_str().to_owned(),
            value: value.to_str().ok()?.to_owned(),
        })
    });
    text.collect()
}

/// Deadline of a request including its body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestDeadline {
    limit: Option<(Instant, Duration)>,
}

impl RequestDeadline {
    /// Creates a deadline after `timeout`. An unrepresentable deadline is treated as absent.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        let limit = timeout.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit)));
        Self { limit }
    }

    /// Awaits a part of the request until the deadline. Fails after the deadline even if the part
    /// is ready.
    pub(crate) async fn apply<F: Future>(&self, future: F) -> Result<F::Output, HttpError> {
        let Some((at, limit)) = self.limit else {
            return Ok(future.await);
        };
        let timeout_message = || HttpError::Host(timeout_message(limit));
        if Instant::now() >= at {
            return Err(timeout_message());
        }
        timeout_at(at, future).await.map_err(|_| timeout_message())
    }
}

/// Returns the timeout message. A zero timeout has the stock server's text.
fn timeout_message(limit: Duration) -> String {
    match limit.as_millis() {
        0 => "http/request failed: route-aware request timed out".to_owned(),
        limit => format!("http/request failed: no complete response within {limit} ms"),
    }
}

/// Converts a transport error. The text includes all causes but not the URL, which may hold a
/// secret.
pub(crate) fn request_error(error: reqwest::Error) -> HttpError {
    let text = error_chain(&error.without_url());
    HttpError::Host(format!("http/request failed: {text}"))
}

/// A request that passed validation.
#[derive(Debug)]
pub(crate) struct ValidatedRequest {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<Bytes>,
    redirect_mode: RedirectMode,
}

impl ValidatedRequest {
    /// Builds the request with the client for its redirect mode. The client turns user and password
    /// of the URL into a header.
    pub(crate) fn into_builder(self, pool: &ConnectionPool) -> RequestBuilder {
        let client = pool.client(self.redirect_mode);
        let request = client.request(self.method, self.url);
        let request = request.headers(self.headers);
        match self.body {
            Some(body) => request.body(body),
            None => request,
        }
    }
}

/// Validates a request and resolves host variables in its headers.
fn validate_request(
    request: HttpRequest,
    env: &BTreeMap<OsString, OsString>,
) -> Result<ValidatedRequest, HttpError> {
    let method = Method::from_bytes(request.method.as_bytes())
        .map_err(|error| rejected(format!("http/request method is invalid: {error}")))?;
    let url = Url::parse(&request.url)
        .map_err(|error| rejected(format!("http/request url is invalid: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        let text = format!(
            "http/request only supports http and https URLs, got {}",
            url.scheme()
        );
        return Err(rejected(text));
    }
    let mut headers = HeaderMap::with_capacity(request.headers.len());
    for header in &request.headers {
        let name = HeaderName::from_bytes(header.name.as_bytes())
            .map_err(|error| rejected(format!("http/request header name is invalid: {error}")))?;
        let value = header_value(header, env)?;
        let appended = headers.try_append(name, value);
        appended.map_err(|_| rejected("too many headers".to_owned()))?;
    }
    // On redirects to another host the library removes only these two headers.
    let secret = |(name, value): (&HeaderName, &HeaderValue)| {
        value.is_sensitive() && *name != AUTHORIZATION && *name != COOKIE
    };
    let redirect_mode = match request.redirects {
        RedirectPolicy::Stop => RedirectMode::Stop,
        RedirectPolicy::Follow if headers.iter().any(secret) => RedirectMode::SameOrigin,
        RedirectPolicy::Follow => RedirectMode::Follow,
    };
    let body = request.body.unwrap_or_default();
    // A different length would make the server wait for more data.
    let length = body.len().to_string();
    if headers
        .get_all(CONTENT_LENGTH)
        .iter()
        .any(|value| value != length.as_str())
    {
        let text = format!("header content-length must match the body length {length}");
        return Err(rejected(text));
    }
    let body = (!body.is_empty()).then_some(body);
    Ok(ValidatedRequest {
        method,
        url,
        headers,
        body,
        redirect_mode,
    })
}

/// Builds a header value: its text followed by the host variable.
fn header_value(
    header: &HttpHeader,
    env: &BTreeMap<OsString, OsString>,
) -> Result<HeaderValue, HttpError> {
    let (name, text) = (&header.name, &header.value);
    let invalid = |error| {
        rejected(format!(
            "http/request header value is invalid for {name}: {error}"
        ))
    };
    let Some(variable) = &header.value_env_var else {
        return HeaderValue::from_bytes(text.as_bytes()).map_err(invalid);
    };
    // Rejects credentials of the server and of cloud providers: the stock server's list and ours.
    if CredentialVariable::find(OsStr::new(variable)).is_some() {
        let text = format!(
            "http/request header {name} cannot use executor environment variable {variable}"
        );
        return Err(rejected(text));
    }
    let variable_value = env.get(OsStr::new(variable)).map(|value| value.as_bytes());
    let secret = match variable_value {
        None => Err(format!(
            "http/request header {name} requires executor environment variable {variable}"
        )),
        Some([]) => Err(format!(
            "http/request header {name} requires a non-empty executor environment variable {variable}"
        )),
        Some(value) => Ok(value),
    }
    .map_err(rejected)?;
    let joined = [text.as_bytes(), secret].concat();
    let mut value = HeaderValue::from_bytes(&joined).map_err(invalid)?;
    // Hides the value from logs and from HTTP/2 header tables.
    value.set_sensitive(true);
    Ok(value)
}

fn rejected(text: String) -> HttpError {
    HttpError::Refused(text)
}

/// Memory limit for all buffered bodies together: four of the maximum size. Larger demand must be
/// streamed.
const MAX_BUFFERED_BYTES: usize = 256 << 20;

/// Reads a whole body into memory.
async fn read_whole_body(
    mut response: Response,
    deadline: RequestDeadline,
    memory: Arc<BodyMemory>,
) -> Result<Bytes, HttpError> {
    let max = limits::MAX_HTTP_BODY_BYTES;
    let too_large = || HttpError::Host(format!("body is larger than {max} bytes: stream it"));
    // Reject early if the length is known.
    if response.content_length() > u64::try_from(max).ok() {
        return Err(too_large());
    }
    let mut buffer = BodyBuffer::new(memory);
    while let Some(part) = next_chunk(&mut response, deadline).await? {
        if buffer.len() + part.len() > max {
            return Err(too_large());
        }
        if !buffer.push(&part) {
            let text = "buffered bodies exceed the memory limit: stream this one";
            return Err(HttpError::Host(text.to_owned()));
        }
    }
    Ok(buffer.finish())
}

/// Streams a body on demand. Dropping the stream closes its connection.
fn stream_body(response: Response, deadline: RequestDeadline) -> HttpBody {
    try_unfold(response, move |mut response| async move {
        let part = next_chunk(&mut response, deadline).await?;
        Ok(part.map(|part| (part, response)))
    })
    .boxed()
}

async fn next_chunk(
    response: &mut Response,
    deadline: RequestDeadline,
) -> Result<Option<Bytes>, HttpError> {
    deadline
        .apply(response.chunk())
        .await?
        .map_err(request_error)
}

/// Memory budget of buffered bodies.
#[derive(Debug, Default)]
pub(crate) struct BodyMemory {
    reserved: AtomicUsize,
}

/// A growing body that reserves memory from the budget.
#[derive(Debug)]
pub(crate) struct BodyBuffer {
    memory: Arc<BodyMemory>,
    bytes: Vec<u8>,
    reserved: usize,
}

impl BodyBuffer {
    pub(crate) fn new(memory: Arc<BodyMemory>) -> Self {
        Self {
            memory,
            bytes: Vec::new(),
            reserved: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a chunk. Returns `false` if the budget is exhausted.
    pub(crate) fn push(&mut self, part: &[u8]) -> bool {
        let before = self
            .memory
            .reserved
            .fetch_add(part.len(), Ordering::Relaxed);
        self.reserved += part.len();
        let fits = before + part.len() <= MAX_BUFFERED_BYTES;
        if fits {
            self.bytes.extend_from_slice(part);
        }
        fits
    }

    /// Returns the body. Its memory stays reserved until the last clone is dropped.
    pub(crate) fn finish(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for BodyBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for BodyBuffer {
    fn drop(&mut self) {
        self.memory
            .reserved
            .fetch_sub(self.reserved, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_memory_is_reserved_until_the_body_is_dropped() {
        let memory = Arc::new(BodyMemory::default());
        let mut buffer = BodyBuffer::new(Arc::clone(&memory));
        assert!(buffer.push(b"some"));
        let body = buffer.finish();
        assert_eq!(
            (&body[..], memory.reserved.load(Ordering::Relaxed)),
            (&b"some"[..], 4)
        );
        drop(body);
        assert_eq!(memory.reserved.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn body_beyond_the_memory_limit_is_rejected_and_released() {
        let memory = Arc::new(BodyMemory::default());
        memory
            .reserved
            .store(MAX_BUFFERED_BYTES - 3, Ordering::Relaxed);
        let mut buffer = BodyBuffer::new(Arc::clone(&memory));
        assert!(!buffer.push(b"some"));
        drop(buffer);
        assert_eq!(
            memory.reserved.load(Ordering::Relaxed),
            MAX_BUFFERED_BYTES - 3
        );
    }
}
