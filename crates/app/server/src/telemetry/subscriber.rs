//! Subscriber of this process: logs on stderr and, with the feature `otel`, exported spans.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use tracing::Subscriber;
#[cfg(feature = "cli")]
use tracing::level_filters::LevelFilter;
#[cfg(feature = "cli")]
use tracing_subscriber::EnvFilter as LogFilter;
#[cfg(not(feature = "cli"))]
use tracing_subscriber::filter::Targets as LogFilter;
use tracing_subscriber::{
    Layer, layer::SubscriberExt, registry::LookupSpan, util::SubscriberInitExt,
};

#[cfg(feature = "otel")]
use super::span_exporter::SpanExport;
use crate::config::{LogConfig, LogFormat, VariableLookup};

/// Subscriber and span exporter of this process. There is one per process.
#[derive(Debug)]
#[must_use = "remaining spans are flushed by `end`"]
pub struct Telemetry {
    #[cfg(feature = "otel")]
    spans: Option<SpanExport>,
}

impl Telemetry {
    /// Logs to stderr: stdout carries one line, or the protocol.
    pub fn logs(config: &LogConfig) -> Self {
        tracing_subscriber::registry().with(log(config)).init();
        Self {
            #[cfg(feature = "otel")]
            spans: None,
        }
    }

    /// Logs to stderr, and exports spans if `OTEL_EXPORTER_OTLP_ENDPOINT` or
    /// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set and the feature `otel` is on.
    ///
    /// # Errors
    /// When the OpenTelemetry variables are invalid.
    #[cfg_attr(
        not(feature = "otel"),
        expect(unused_variables, reason = "without spans")
    )]
    pub fn begin(config: &LogConfig, lookup: VariableLookup<'_>) -> anyhow::Result<Self> {
        #[cfg(feature = "otel")]
        if let Some(spans) = SpanExport::find(lookup)? {
            tracing_subscriber::registry()
                .with(log(config))
                .with(spans.layer())
                .init();
            return Ok(Self { spans: Some(spans) });
        }
        Ok(Self::logs(config))
    }

    /// Flushes remaining spans within a limit. Blocks, so no runtime may need this thread.
    pub fn end(self) {
        #[cfg(feature = "otel")]
        if let Some(spans) = self.spans {
            spans.flush();
        }
    }
}

fn log<S>(config: &LogConfig) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let level = config
        .level
        .as_ref()
        .map_or("error", |level| level.as_str());
    let filter = parse_log_filter(level).unwrap_or_default();
    let layer = tracing_subscriber::fmt::layer().with_ansi(false);
    let layer = layer.with_writer(BoundedLog::of_stderr);
    match config.format {
        LogFormat::Text => layer.with_filter(filter).boxed(),
        LogFormat::Json => layer.json().with_filter(filter).boxed(),
    }
}

/// Parses a level, or filters like those of `RUST_LOG`. Filters for spans and fields need regular
/// expressions, and the feature `cli`.
#[cfg(feature = "cli")]
pub(crate) fn parse_log_filter(text: &str) -> Option<LogFilter> {
    let builder = LogFilter::builder().with_default_directive(LevelFilter::ERROR.into());
    builder.parse(text).ok()
}

#[cfg(not(feature = "cli"))]
pub(crate) fn parse_log_filter(text: &str) -> Option<LogFilter> {
    if text.contains('[') {
        // It would be part of the name of a target.
        return None;
    }
    let parts: Vec<_> = text.split(',').filter(|part| !part.is_empty()).collect();
    parts.join(",").parse().ok()
}

/// Bounds the log from now on: nothing rotates the file of a server in the background.
pub fn bound_stderr_log() {
    IS_BOUNDED.store(true, Ordering::Relaxed);
}

/// Stderr for logs. In the background it accepts one megabyte.
#[derive(Debug)]
struct BoundedLog(io::Stderr);

impl BoundedLog {
    /// Returns a writer for one event. All writers share the limit.
    fn of_stderr() -> Self {
        Self(io::stderr())
    }
}

impl Write for BoundedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !IS_BOUNDED.load(Ordering::Relaxed) || WRITTEN.admits(bytes.len()) {
            self.0.write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

static IS_BOUNDED: AtomicBool = AtomicBool::new(false);
static WRITTEN: LogBudget = LogBudget(AtomicU64::new(0));

/// Counts logged bytes up to the limit.
#[derive(Debug)]
struct LogBudget(AtomicU64);

impl LogBudget {
    /// Adds to the count, and returns whether the limit was not yet reached.
    fn admits(&self, bytes: usize) -> bool {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed) < MAX_LOG_BYTES
    }
}

/// Maximum bytes of logs, plus at most one line.
const MAX_LOG_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_exceeds_its_limit_by_at_most_one_line() {
        let budget = LogBudget(AtomicU64::new(0));
        let admitted = (0..100_000).filter(|_| budget.admits(100)).count() as u64;
        assert_eq!(admitted * 100, MAX_LOG_BYTES.next_multiple_of(100));
    }
}
