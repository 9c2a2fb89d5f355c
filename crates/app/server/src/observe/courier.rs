//! Carries spans to a collector, on a thread and a runtime of its own: the server's one thread has no part
//! in it.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use exec_transport::tls::Trust;
use http::{Request, Response};
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use reqwest::{Client, redirect::Policy};
use tokio::{runtime::Runtime, sync::OnceCell, time::timeout};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};

/// Largest answer of a collector that is read: they say little.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// A client for HTTP that whoever calls it waits for.
pub(super) struct Courier {
    runtime: Runtime,
    trust: Trust,
    within: Duration,
    client: OnceCell<Client>,
}

impl fmt::Debug for Courier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Courier").finish_non_exhaustive()
    }
}

impl Courier {
    /// Makes a client. Certificates are read with the first request that needs them.
    pub(super) fn new(trust: Trust, within: Duration) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            runtime,
            trust,
            within,
            client: OnceCell::new(),
        })
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let secure = request.uri().scheme_str() == Some("https");
        let client = self.client.get_or_try_init(|| self.client(secure)).await?;
        let mut answer = client.execute(request.try_into()?).await?;
        let mut response = Response::builder().status(answer.status());
        if let Some(headers) = response.headers_mut() {
            *headers = std::mem::take(answer.headers_mut());
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            let room = MAX_ANSWER_BYTES.saturating_sub(body.len());
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                break;
            }
        }
        Ok(response.body(body.into())?)
    }

    async fn client(&self, secure: bool) -> Result<Client, HttpError> {
        let tls = if secure {
            self.trust.config().await?
        } else {
            Arc::new(accepts_nothing()?)
        };
        let client = Client::builder()
            .redirect(Policy::none())
            .tls_backend_preconfigured(ClientConfig::clone(&tls))
            .build()?;
        Ok(client)
    }
}

impl HttpClient for Courier {
    fn send_bytes<'life, 'run>(
        &'life self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'run>>
    where
        'life: 'run,
        Self: 'run,
    {
        // The thread that asks is the exporter's own, and belongs to no runtime.
        Box::pin(async move {
            let sent = async { timeout(self.within, self.exchange(request)).await };
            self.runtime.block_on(sent)?
        })
    }
}

/// For collectors that are reached without TLS.
fn accepts_nothing() -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    Ok(config)
}
