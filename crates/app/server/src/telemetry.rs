//! Telemetry of a server: logs, Prometheus metrics and OpenTelemetry spans.
//!
//! Invariant: disabled telemetry costs nothing, and a slow consumer never blocks the server. Not
//! here: counting and tracing (`exec-service`).

mod metrics_endpoint;
#[cfg(feature = "otel")]
mod span_exporter;
#[cfg(any(feature = "executor", feature = "otel"))]
mod subscriber;

#[cfg(any(feature = "executor", feature = "otel"))]
pub use self::subscriber::{Telemetry, bound_stderr_log};

#[cfg(feature = "hub")]
pub(crate) use self::metrics_endpoint::resident_bytes;
pub(crate) use self::metrics_endpoint::{MetricsRenderer, serve_metrics};
#[cfg(feature = "otel")]
pub(crate) use self::span_exporter::continue_trace;
#[cfg(feature = "executor")]
pub(crate) use self::subscriber::parse_log_filter;
