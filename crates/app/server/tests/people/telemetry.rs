//! Tests of metrics, logs, spans and packaging.

mod executor;
pub(crate) mod http_client;
mod logs;
mod metrics;
mod packaging;
mod span_collector;
mod spans;
