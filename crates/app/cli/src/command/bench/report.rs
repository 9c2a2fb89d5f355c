//! Results of measurements, as a table and as JSON.

use std::time::Duration;

use serde::Serialize;

use crate::command::print::TextTable;

/// Result of one measurement.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct Measurement {
    /// Name of the measurement.
    pub(super) name: &'static str,
    /// Result.
    #[serde(flatten)]
    pub(super) outcome: MeasurementOutcome,
    /// Typical value with server and client on one machine.
    #[serde(skip)]
    pub(super) typical: &'static str,
}

/// Outcome of a measurement.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
pub(super) enum MeasurementOutcome {
    /// Latency of one iteration.
    Time {
        /// Iterations.
        runs: usize,
        /// Median latency.
        p50_micros: u64,
        /// 99th percentile.
        p99_micros: u64,
    },
    /// Throughput.
    Rate {
        /// Bytes transferred.
        bytes: u64,
        /// Bytes per second.
        bytes_per_second: u64,
    },
    /// The measurement failed.
    Failed {
        /// Why.
        error: String,
    },
}

impl MeasurementOutcome {
    /// Summarizes latency samples.
    pub(super) fn of_times(mut samples: LatencySamples) -> Self {
        Self::Time {
            runs: samples.len(),
            p50_micros: micros(samples.percentile(50)),
            p99_micros: micros(samples.percentile(99)),
        }
    }

    /// Computes the throughput of a transfer.
    pub(super) fn of_bytes(bytes: u64, took: Duration) -> Self {
        let rate = u128::from(bytes) * 1_000_000 / took.as_micros().max(1);
        Self::Rate {
            bytes,
            bytes_per_second: u64::try_from(rate).unwrap_or(u64::MAX),
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Formats measurements as a table.
pub(super) fn table(measurements: &[Measurement]) -> TextTable {
    let mut table = TextTable::new(&["WHAT", "P50", "P99", "RATE", "TYPICAL ON ONE MACHINE"]);
    for Measurement {
        name,
        outcome,
        typical,
    } in measurements
    {
        let cells = match outcome {
            MeasurementOutcome::Time {
                p50_micros,
                p99_micros,
                ..
            } => [span(*p50_micros), span(*p99_micros), String::new()],
            MeasurementOutcome::Rate {
                bytes_per_second, ..
            } => [String::new(), String::new(), rate(*bytes_per_second)],
            MeasurementOutcome::Failed { error } => {
                table.push([(*name).to_owned(), format!("failed: {error}")]);
                continue;
            }
        };
        let typical = [(*typical).to_owned()];
        table.push([(*name).to_owned()].into_iter().chain(cells).chain(typical));
    }
    table
}

/// Formats a duration with a suitable unit.
pub(super) fn span(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{}.{:02} ms", micros / 1_000, micros % 1_000 / 10),
        _ => format!(
            "{}.{:02} s",
            micros / 1_000_000,
            micros % 1_000_000 / 10_000
        ),
    }
}

fn rate(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB/s", bytes / 1_000),
        _ => format!("{} MB/s", bytes / 1_000_000),
    }
}

/// Maximum number of samples: enough for a 99th percentile, and bounded.
pub(super) const MAX_SAMPLES: usize = 10_000;

/// Latencies of repeated iterations.
#[derive(Clone, Debug, Default)]
pub(super) struct LatencySamples(Vec<Duration>);

impl LatencySamples {
    /// Adds a sample.
    pub(super) fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// Returns whether the maximum number of samples is reached.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MAX_SAMPLES
    }

    /// Returns the number of samples.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the latency that `hundredths` percent of the samples do not exceed; zero without
    /// samples.
    pub(super) fn percentile(&mut self, hundredths: usize) -> Duration {
        self.0.sort_unstable();
        let rank = (self.0.len() * hundredths).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_have_suitable_units() {
        assert_eq!(span(999), "999 us");
        assert_eq!(span(1_234), "1.23 ms");
        assert_eq!(span(2_050_000), "2.05 s");
        assert_eq!(rate(999_999), "999 kB/s");
        assert_eq!(rate(1_999_999_999), "1999 MB/s");
        let second = Duration::from_secs(2);
        let rated = MeasurementOutcome::of_bytes(10, second);
        assert_eq!(
            rated,
            MeasurementOutcome::Rate {
                bytes: 10,
                bytes_per_second: 5
            }
        );
    }

    #[test]
    fn percentiles_use_sorted_samples() {
        let mut samples = LatencySamples::default();
        assert_eq!(samples.percentile(50), Duration::ZERO);
        for millis in (1..=200).rev() {
            samples.push(Duration::from_millis(millis));
        }
        assert_eq!(samples.percentile(50), Duration::from_millis(100));
        assert_eq!(samples.percentile(99), Duration::from_millis(198));
        assert_eq!(samples.percentile(100), Duration::from_millis(200));
        assert_eq!(samples.len(), 200);
    }
}
