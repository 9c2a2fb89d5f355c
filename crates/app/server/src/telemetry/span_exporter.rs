//! Exports spans to an OpenTelemetry collector, and continues the traces of clients.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use exec_service::TraceOrigin;
use exec_transport::tls::TrustStore;
use exec_wire::message::TraceContext;
use http::{Request, Response};
use opentelemetry::{
    Context, Key, KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::{TraceContextExt, TracerProvider},
};
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use reqwest::{Client, redirect::Policy};
use tokio::{runtime::Runtime, sync::OnceCell, time::timeout};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use tracing::{Span, Subscriber, level_filters::LevelFilter};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use crate::config::VariableLookup;

/// Limit for flushing spans on exit.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Default export timeout.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Export of spans, as the `OTEL_…` variables configure it.
#[derive(Debug)]
pub(super) struct SpanExport {
    provider: SdkTracerProvider,
}

impl SpanExport {
    /// Reads the variables; `None` if they name no collector.
    pub(super) fn find(lookup: VariableLookup<'_>) -> anyhow::Result<Option<Self>> {
        if !exports_spans(lookup) {
            return Ok(None);
        }
        let provider =
            provider(lookup).context("cannot export spans as configured by OTEL_… variables")?;
        Ok(Some(Self { provider }))
    }

    /// Returns the layer that records spans of requests and processes.
    pub(super) fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(env!("CARGO_PKG_NAME")))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            // Other events, such as those of the exporter, do not belong to requests.
            .with_filter(
                Targets::new()
                    .with_target("exec_service::request", LevelFilter::INFO)
                    .with_target("exec_service::process", LevelFilter::INFO),
            )
    }

    /// Flushes remaining spans within a limit. Blocks.
    pub(super) fn flush(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH_TIMEOUT) {
            tracing::warn!(%error, "remaining spans were not exported");
        }
    }
}

fn exports_spans(lookup: VariableLookup<'_>) -> bool {
    let is_set = |name| lookup(name).is_some_and(|value| !value.is_empty());
    let says =
        |name, word: &str| lookup(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
    (is_set("OTEL_EXPORTER_OTLP_ENDPOINT") || is_set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
        && !says("OTEL_SDK_DISABLED", "true")
        && !says("OTEL_TRACES_EXPORTER", "none")
}

/// Builds the exporter. The library reads the other variables itself: endpoints, headers, batching,
/// samplers.
fn provider(lookup: VariableLookup<'_>) -> anyhow::Result<SdkTracerProvider> {
    let client = OtlpHttpClient::new(trust(lookup), export_timeout(lookup))?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .build()?;
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource())
        .build())
}

fn trust(lookup: VariableLookup<'_>) -> TrustStore {
    [
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_CERTIFICATE",
        "SSL_CERT_FILE",
    ]
    .into_iter()
    .filter_map(lookup)
    .find(|file| !file.is_empty())
    .map_or_else(TrustStore::platform, TrustStore::only)
}

fn export_timeout(lookup: VariableLookup<'_>) -> Duration {
    [
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
        "OTEL_EXPORTER_OTLP_TIMEOUT",
    ]
    .into_iter()
    .filter_map(lookup)
    .find_map(|text| text.to_str()?.parse().ok())
    .map_or(EXPORT_TIMEOUT, Duration::from_millis)
}

/// Returns the resource from the variables, with name and version of this program as defaults.
fn resource() -> Resource {
    let found = Resource::builder().build();
    let name = found.get(&Key::from_static_str("service.name"));
    let unnamed = name.is_none_or(|name| name.as_str().starts_with("unknown_service"));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder_empty().with_attribute(version);
    let resource = resource.with_attributes(
        found
            .iter()
            .map(|(key, value)| KeyValue::new(key.clone(), value.clone())),
    );
    match unnamed {
        true => resource.with_service_name(env!("CARGO_PKG_NAME")).build(),
        false => resource.build(),
    }
}

/// Maximum size of a collector's response.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Blocking HTTP client for the OTLP exporter.
struct OtlpHttpClient {
    runtime: Runtime,
    trust: TrustStore,
    within: Duration,
    client: OnceCell<Client>,
}

impl fmt::Debug for OtlpHttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtlpHttpClient").finish_non_exhaustive()
    }
}

impl OtlpHttpClient {
    /// Creates a client. Certificates are read with the first request that needs them.
    fn new(trust: TrustStore, within: Duration) -> anyhow::Result<Self> {
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
        let mut otlp_response = client.execute(request.try_into()?).await?;
        let mut response = Response::builder().status(otlp_response.status());
        if let Some(headers) = response.headers_mut() {
            *headers = std::mem::take(otlp_response.headers_mut());
        }
        let mut body = Vec::new();
        while let Some(chunk) = otlp_response.chunk().await? {
            let remaining = MAX_RESPONSE_BYTES.saturating_sub(body.len());
            body.extend_from_slice(&chunk[..chunk.len().min(remaining)]);
            if chunk.len() > remaining {
                break;
            }
        }
        Ok(response.body(body.into())?)
    }

    async fn client(&self, secure: bool) -> Result<Client, HttpError> {
        let tls = if secure {
            self.trust.config().await?
        } else {
            Arc::new(empty_trust_config()?)
        };
        let client = Client::builder()
            .redirect(Policy::none())
            .tls_backend_preconfigured(ClientConfig::clone(&tls))
            .build()?;
        Ok(client)
    }
}

impl HttpClient for OtlpHttpClient {
    fn send_bytes<'life, 'run>(
        &'life self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'run>>
    where
        'life: 'run,
        Self: 'run,
    {
        // The exporter's own thread calls this, outside any runtime.
        Box::pin(async move {
            let sent = async { timeout(self.within, self.exchange(request)).await };
            self.runtime.block_on(sent)?
        })
    }
}

/// Returns a TLS configuration for collectors without TLS.
fn empty_trust_config() -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    Ok(config)
}

/// Sets the parent of a span: the client's trace context, or another span of ours. Invalid trace
/// contexts are ignored.
pub(crate) fn continue_trace(span: &Span, origin: TraceOrigin<'_>) {
    let parent = match origin {
        TraceOrigin::Trace(trace) => TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &TraceHeaders(trace)),
        TraceOrigin::Span(parent) => parent.context(),
    };
    if parent.span().span_context().is_valid() {
        // Without an exporter there is nothing to continue.
        drop(span.set_parent(parent));
    }
}

/// Trace context as HTTP headers.
struct TraceHeaders<'a>(&'a TraceContext);

impl Extractor for TraceHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.0.traceparent.as_deref(),
            "tracestate" => self.0.tracestate.as_deref(),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}
