//! HTTP requests from this machine.
//!
//! Nothing is read or built before the first request: no certificates, no connection pool. Variables
//! and proxies come from an environment that is handed in. Bodies are passed on as they came, also
//! when they are compressed. Not here: the wire (`exec-service`), requests from elsewhere
//! (`exec-client`).

mod pool;
mod request;
mod response_body;

use std::{collections::BTreeMap, error::Error, ffi::OsString, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_env::http::{HttpBody, HttpClient, HttpError, HttpFuture, HttpRequest, HttpResponse};
use exec_wire::http::HttpResponseHeader;
use futures_util::future::FutureExt;
use reqwest::{Response, header::HeaderMap};
use tokio::{
    sync::OnceCell,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use self::{pool::Pool, response_body::Room};

/// Makes requests from this machine. Clones share connections.
#[derive(Clone, Default)]
pub struct LocalHttpClient {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The host's environment: variables of headers, proxies, certificates.
    env: BTreeMap<OsString, OsString>,
    /// Built by the first request.
    pool: OnceCell<Pool>,
    room: Arc<Room>,
}

impl LocalHttpClient {
    /// Takes the host's environment. Header values and proxies are found there.
    pub fn new(env: BTreeMap<OsString, OsString>) -> Self {
        Self {
            shared: Arc::new(Shared {
                env,
                ..Shared::default()
            }),
        }
    }

    /// Sends a request and waits for the headers of its answer.
    async fn send(self, asked: HttpRequest) -> Result<(Response, Deadline), HttpError> {
        let deadline = Deadline::after(asked.timeout);
        let checked = request::check(asked, &self.shared.env)?;
        let pool = deadline.bound(self.pool()).await??;
        let response = deadline.bound(checked.with(pool).send()).await?;
        Ok((response.map_err(failed)?, deadline))
    }

    async fn pool(&self) -> Result<&Pool, HttpError> {
        let build = || async {
            let shared = Arc::clone(&self.shared);
            // Certificates are read from files.
            let built = spawn_blocking(move || Pool::new(&shared.env)).await;
            built.map_err(|error| HttpError::Host(error.to_string()))?
        };
        self.shared.pool.get_or_try_init(build).await
    }
}

impl HttpClient for LocalHttpClient {
    fn request(&self, request: HttpRequest) -> HttpFuture<HttpResponse<Bytes>> {
        let client = self.clone();
        async move {
            let room = Arc::clone(&client.shared.room);
            let (response, deadline) = client.send(request).await?;
            let (status, headers) = head(&response);
            let body = response_body::whole(response, deadline, room).await?;
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
                body: response_body::parts(response, deadline),
            })
        }
        .boxed()
    }
}

impl fmt::Debug for LocalHttpClient {
    /// Shows nothing of the environment, which holds secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalHttpClient").finish_non_exhaustive()
    }
}

fn head(response: &Response) -> (u16, Vec<HttpResponseHeader>) {
    (response.status().as_u16(), headers(response.headers()))
}

/// Returns the headers that are text.
fn headers(headers: &HeaderMap) -> Vec<HttpResponseHeader> {
    let text = headers.iter().filter_map(|(name, value)| {
        Some(HttpResponseHeader {
            name: name.as_str().to_owned(),
            value: value.to_str().ok()?.to_owned(),
        })
    });
    text.collect()
}

/// When a request must be over, its body included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    limit: Option<(Instant, Duration)>,
}

impl Deadline {
    /// Ends in `timeout`. One that is too far away to be told is none.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        let limit = timeout.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit)));
        Self { limit }
    }

    /// Waits for something that is part of the request. What comes too late is not taken, also when
    /// nobody was there to take it in time.
    pub(crate) async fn bound<F: Future>(&self, future: F) -> Result<F::Output, HttpError> {
        let Some((at, limit)) = self.limit else {
            return Ok(future.await);
        };
        let late = || HttpError::Host(late(limit));
        if Instant::now() >= at {
            return Err(late());
        }
        timeout_at(at, future).await.map_err(|_| late())
    }
}

/// Says that a request took too long; without any time at all, as the stock server does.
fn late(limit: Duration) -> String {
    match limit.as_millis() {
        0 => "http/request failed: route-aware request timed out".to_owned(),
        limit => format!("http/request failed: no complete response within {limit} ms"),
    }
}

/// Host: the request was not answered. The text has every cause, and no URL: it may hold a secret.
pub(crate) fn failed(error: reqwest::Error) -> HttpError {
    let error = error.without_url();
    let mut text = format!("http/request failed: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    HttpError::Host(text)
}
