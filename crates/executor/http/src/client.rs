//! The client itself.

use std::{collections::BTreeMap, ffi::OsString, fmt, sync::Arc};

use bytes::Bytes;
use exec_env::http::{HttpBody, HttpClient, HttpError, HttpFuture, HttpRequest, HttpResponse};
use exec_wire::http::HttpResponseHeader;
use futures_util::future::FutureExt;
use reqwest::{Response, header::HeaderMap};
use tokio::{sync::OnceCell, task::spawn_blocking};

use crate::{
    body,
    deadline::{Deadline, failed},
    held::Room,
    pool::Pool,
    request,
};

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
            let body = body::whole(response, deadline, room).await?;
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
                body: body::parts(response, deadline),
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
