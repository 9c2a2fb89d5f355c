//! Metrics: counters, gauges, and the page of `/metrics` in the Prometheus text format.
//!
//! Invariant: counting takes no lock and allocates nothing, because it happens for every message.
//! Elsewhere: the metrics and their names (`exec-service`, `exec-hub`, `exec-server`).

use std::{
    fmt::{self, Display},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// A monotonic counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds a number.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Adds a byte count.
    pub fn add_bytes(&self, bytes: usize) {
        self.add(bytes as u64);
    }

    /// Returns the current value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A value that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Adds one.
    pub fn enter(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts one.
    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the current value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Metrics page under construction.
#[derive(Debug, Default)]
pub struct MetricsPage(String);

impl MetricsPage {
    /// Starts a metric; its samples follow.
    pub fn begin(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    /// Writes a counter with one sample.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, "counter", help);
        self.line(format_args!("{name} {value}"));
    }

    /// Writes a gauge with one sample.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, "gauge", help);
        self.line(format_args!("{name} {value}"));
    }

    /// Writes a metric with one sample per label value. The values are our own words and need no
    /// escaping.
    pub fn family<V: Display>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        label: &str,
        samples: impl IntoIterator<Item = (&'static str, V)>,
    ) {
        self.begin(name, kind, help);
        for (word, value) in samples {
            self.line(format_args!("{name}{{{label}=\"{word}\"}} {value}"));
        }
    }

    /// Writes one sample of the current metric.
    pub fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        self.line(format_args!("{name}{{{labels}}} {value}"));
    }

    /// Writes the samples of a histogram in seconds. `buckets` are upper bounds with cumulative
    /// counts.
    pub fn histogram(
        &mut self,
        name: &str,
        labels: &str,
        buckets: impl IntoIterator<Item = (Duration, u64)>,
        (count, sum): (u64, Duration),
    ) {
        for (bound, count) in buckets {
            let seconds = bound.as_secs_f64();
            self.line(format_args!(
                "{name}_bucket{{{labels},le=\"{seconds}\"}} {count}"
            ));
        }
        let sum = sum.as_secs_f64();
        self.line(format_args!(
            "{name}_bucket{{{labels},le=\"+Inf\"}} {count}"
        ));
        self.line(format_args!("{name}_sum{{{labels}}} {sum}"));
        self.line(format_args!("{name}_count{{{labels}}} {count}"));
    }

    /// Returns the page.
    pub fn into_text(self) -> String {
        self.0
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.0.push_str(&fmt::format(line));
        self.0.push('\n');
    }
}
