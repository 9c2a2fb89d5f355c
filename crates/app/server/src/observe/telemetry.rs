//! Sets up where events and spans of this program go, and ends it.

use std::time::Duration;

use anyhow::Context;
use exec_transport::tls::Trust;
use opentelemetry::{Key, KeyValue, trace::TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    EnvFilter, Layer, filter::Targets, fmt, layer::SubscriberExt, registry::LookupSpan,
    util::SubscriberInitExt,
};

use super::courier::Courier;
use crate::{
    background::BoundedLog,
    config::{LogConfig, LogFormat, Lookup},
};

/// How long the last spans may take to reach their collector when the program ends.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long a collector may take to answer, if no variable says otherwise.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where events and spans of this program go. There is one for a program.
#[derive(Debug)]
#[must_use = "the last spans are sent when it is ended"]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Logs to stderr: stdout carries one line, or the protocol.
    pub fn logs(config: &LogConfig) -> Self {
        tracing_subscriber::registry().with(log(config)).init();
        Self { provider: None }
    }

    /// Logs to stderr, and sends spans to a collector if `OTEL_EXPORTER_OTLP_ENDPOINT` or
    /// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` names one.
    ///
    /// # Errors
    /// When the variables of OpenTelemetry say what cannot be.
    pub fn begin(config: &LogConfig, lookup: Lookup<'_>) -> anyhow::Result<Self> {
        if !is_wanted(lookup) {
            return Ok(Self::logs(config));
        }
        let provider = provider(lookup).context("cannot export spans as OTEL_… variables say")?;
        let spans = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer(env!("CARGO_PKG_NAME")))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            // What else is logged, by the exporter too, is no part of what clients asked for.
            .with_filter(
                Targets::new()
                    .with_target("exec_service::request", LevelFilter::INFO)
                    .with_target("exec_service::process", LevelFilter::INFO),
            );
        tracing_subscriber::registry()
            .with(log(config))
            .with(spans)
            .init();
        Ok(Self {
            provider: Some(provider),
        })
    }

    /// Sends what is left, if that does not take long. It waits, so no runtime may need this thread.
    pub fn end(self) {
        if let Some(provider) = self.provider
            && let Err(error) = provider.shutdown_with_timeout(LAST_WORDS)
        {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

fn log<S>(config: &LogConfig) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let level = config.level.as_ref().map_or("", |level| level.as_str());
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::ERROR.into())
        .parse_lossy(level);
    let layer = fmt::layer().with_ansi(false);
    let layer = layer.with_writer(BoundedLog::of_stderr);
    match config.format {
        LogFormat::Text => layer.with_filter(filter).boxed(),
        LogFormat::Json => layer.json().with_filter(filter).boxed(),
    }
}

fn is_wanted(lookup: Lookup<'_>) -> bool {
    let is_set = |name| lookup(name).is_some_and(|value| !value.is_empty());
    let says =
        |name, word: &str| lookup(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
    (is_set("OTEL_EXPORTER_OTLP_ENDPOINT") || is_set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
        && !says("OTEL_SDK_DISABLED", "true")
        && !says("OTEL_TRACES_EXPORTER", "none")
}

/// The library reads the other variables itself: endpoints, headers, batches and their queue, samplers.
fn provider(lookup: Lookup<'_>) -> anyhow::Result<SdkTracerProvider> {
    let courier = Courier::new(trust(lookup), timeout(lookup))?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(courier)
        .build()?;
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource())
        .build())
}

fn trust(lookup: Lookup<'_>) -> Trust {
    [
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_CERTIFICATE",
        "SSL_CERT_FILE",
    ]
    .into_iter()
    .filter_map(lookup)
    .find(|file| !file.is_empty())
    .map_or_else(Trust::platform, Trust::only)
}

fn timeout(lookup: Lookup<'_>) -> Duration {
    [
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
        "OTEL_EXPORTER_OTLP_TIMEOUT",
    ]
    .into_iter()
    .filter_map(lookup)
    .find_map(|text| text.to_str()?.parse().ok())
    .map_or(EXPORT_TIMEOUT, Duration::from_millis)
}

/// What the variables say of this program, with its name and version where they say nothing.
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
