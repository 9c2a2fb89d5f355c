//! A page in the text format of Prometheus.

use std::{
    fmt::{self, Display},
    time::Duration,
};

use exec_service::meters::{BOUNDS_MICROS, HistogramValues};

/// A page that is being written.
#[derive(Debug, Default)]
pub(super) struct Page(String);

impl Page {
    /// Begins a metric: its samples follow.
    pub(super) fn begin(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    /// Writes a metric of one sample that only grows.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, "counter", help);
        self.line(format_args!("{name} {value}"));
    }

    /// Writes a metric of one sample that goes up and down.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, "gauge", help);
        self.line(format_args!("{name} {value}"));
    }

    /// Writes a metric with one sample for each value of a label. The values are words of ours, so
    /// nothing in them needs to be escaped.
    pub(super) fn family<V: Display>(
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

    /// Writes one sample of a metric that was begun.
    pub(super) fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        self.line(format_args!("{name}{{{labels}}} {value}"));
    }

    /// Writes the samples of a histogram of seconds.
    pub(super) fn histogram(&mut self, name: &str, labels: &str, values: &HistogramValues) {
        for (bound, count) in BOUNDS_MICROS.iter().zip(values.at_most) {
            let seconds = Duration::from_micros(*bound).as_secs_f64();
            self.line(format_args!(
                "{name}_bucket{{{labels},le=\"{seconds}\"}} {count}"
            ));
        }
        let (count, sum) = (values.count, values.sum.as_secs_f64());
        self.line(format_args!(
            "{name}_bucket{{{labels},le=\"+Inf\"}} {count}"
        ));
        self.line(format_args!("{name}_sum{{{labels}}} {sum}"));
        self.line(format_args!("{name}_count{{{labels}}} {count}"));
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.0.push_str(&fmt::format(line));
        self.0.push('\n');
    }
}
