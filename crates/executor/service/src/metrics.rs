//! Metrics of a service: counters, histograms, and counters by exit cause, start failure and
//! network policy decision. Invariant: counting takes no lock and allocates nothing, because it
//! happens for every message. Elsewhere: metrics of requests (`request_guard`), metric
//! names, formats and the endpoint.

use std::{array, time::Duration};

use exec_env::environment::StartError;
use exec_wire::process::ExitCause;

pub use exec_transport::metrics::{Counter, Gauge};

pub use crate::request_guard::{MethodMetrics, RequestMetrics, RequestOutcome};

/// Metrics of one service since it was created.
#[derive(Debug, Default)]
pub struct ServiceMetrics {
    /// Open connections.
    pub connections: Gauge,
    /// Connections opened.
    pub connections_opened: Counter,
    /// Sessions opened.
    pub sessions_opened: Counter,
    /// Sessions resumed.
    pub sessions_resumed: Counter,
    /// Sessions that expired before their client resumed them.
    pub sessions_expired: Counter,
    /// Processes started.
    pub processes_started: Counter,
    /// Processes ended, by exit cause.
    pub processes_ended: ExitCauseCounters,
    /// Failed process starts, by reason.
    pub start_failures: StartFailureCounters,
    /// Processes that ended after a probable sandbox denial.
    pub sandbox_denials: Counter,
    /// Network policy decisions.
    pub network_decisions: PolicyDecisionCounters,
    /// Request counts and latencies by method.
    pub requests: RequestMetrics,
    /// Responses that match no pending server request.
    pub unsolicited_responses: Counter,
    /// Process output sent as events, in bytes.
    pub output_bytes: Counter,
    /// Input written to processes, in bytes.
    pub input_bytes: Counter,
    /// File content read, in bytes.
    pub file_read_bytes: Counter,
    /// File content written, in bytes.
    pub file_written_bytes: Counter,
    /// Messages received.
    pub messages_received: Counter,
    /// Bytes received, without transport framing.
    pub received_bytes: Counter,
    /// Bytes handed to transports.
    pub sent_bytes: Counter,
}

/// Snapshot of the gauges of a service.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct GaugeSnapshot {
    /// Sessions with a connection.
    pub sessions_attached: usize,
    /// Sessions without a connection.
    pub sessions_detached: usize,
    /// Running processes.
    pub processes_running: usize,
    /// Running detached processes.
    pub detached_running: usize,
    /// Finished processes that are still readable.
    pub processes_finished: usize,
    /// Retained output, in bytes.
    pub retained_bytes: usize,
    /// Bytes in send queues.
    pub send_queue_bytes: usize,
}

/// Upper bounds of the buckets in microseconds, from an in-memory response to waiting for a long
/// command. One more bucket holds the rest.
pub const BUCKET_BOUNDS_MICROS: [u64; 16] = [
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
    30_000_000,
    300_000_000,
];

const BUCKETS: usize = BUCKET_BOUNDS_MICROS.len() + 1;

/// Histogram of durations.
#[derive(Debug, Default)]
pub struct LatencyHistogram {
    buckets: [Counter; BUCKETS],
    sum_micros: Counter,
}

/// Values of a histogram at one moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HistogramSnapshot {
    /// Cumulative counts for each bound of [`BUCKET_BOUNDS_MICROS`].
    pub at_most: [u64; BUCKET_BOUNDS_MICROS.len()],
    /// Number of recorded durations.
    pub count: u64,
    /// Sum of the recorded durations.
    pub sum: Duration,
}

impl LatencyHistogram {
    pub(crate) fn record(&self, span: Duration) {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKET_BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.buckets[bucket].increment();
        self.sum_micros.add(micros);
    }

    /// Returns the recorded values. A concurrent `record` may be only partly visible.
    pub fn values(&self) -> HistogramSnapshot {
        let mut count = 0;
        let at_most = array::from_fn(|bucket| {
            count += self.buckets[bucket].value();
            count
        });
        HistogramSnapshot {
            at_most,
            count: count + self.buckets[BUCKETS - 1].value(),
            sum: Duration::from_micros(self.sum_micros.value()),
        }
    }
}

/// Returns the label and value of each counter. The table has them in the same order.
fn labelled<K>(
    table: &[(K, &'static str)],
    counters: &[Counter],
) -> impl Iterator<Item = (&'static str, u64)> {
    let names = table.iter().map(|(_, name)| *name);
    names.zip(counters.iter().map(Counter::value))
}

/// Ended processes by exit cause.
#[derive(Debug, Default)]
pub struct ExitCauseCounters([Counter; CAUSES.len()]);

/// Label of each exit cause.
const CAUSES: [(ExitCause, &str); 9] = [
    (ExitCause::Exit, "exit"),
    (ExitCause::Signal, "signal"),
    (ExitCause::Terminated, "terminated"),
    (ExitCause::WallLimit, "wall_limit"),
    (ExitCause::IdleLimit, "idle_limit"),
    (ExitCause::MemoryLimit, "memory_limit"),
    (ExitCause::ProcessLimit, "process_limit"),
    (ExitCause::Lost, "lost"),
    (ExitCause::Unknown, "unknown"),
];

impl ExitCauseCounters {
    pub(crate) fn count(&self, cause: ExitCause) {
        let index = CAUSES.iter().position(|(known, _)| *known == cause);
        if let Some(counter) = index.and_then(|index| self.0.get(index)) {
            counter.increment();
        }
    }

    /// Returns the label and count of each cause.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        labelled(&CAUSES, &self.0)
    }

    pub(crate) fn name(cause: ExitCause) -> &'static str {
        let entry = CAUSES.iter().find(|(known, _)| *known == cause);
        entry.map_or("unknown", |(_, name)| name)
    }
}

/// Why a process did not start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StartFailureReason {
    /// The sandbox policy is invalid or cannot be enforced on this host.
    Sandbox,
    /// Another parameter is invalid.
    Params,
    /// The session is at its process limit, or the id is in use.
    Table,
    /// The operating system failed to start it.
    Spawn,
    /// It was terminated before it started, or its session ended.
    Cancelled,
    /// Any other reason.
    Other,
}

impl StartFailureReason {
    const ALL: [(Self, &str); 6] = [
        (Self::Sandbox, "sandbox"),
        (Self::Params, "params"),
        (Self::Table, "table"),
        (Self::Spawn, "spawn"),
        (Self::Cancelled, "cancelled"),
        (Self::Other, "other"),
    ];

    pub(crate) fn of(error: &StartError) -> Self {
        match error {
            StartError::Refused { field, .. } if *field == "sandbox" => Self::Sandbox,
            StartError::EmptyArgv
            | StartError::EmptyProgram
            | StartError::Cwd(_)
            | StartError::Refused { .. } => Self::Params,
            StartError::Spawn { .. } => Self::Spawn,
            StartError::Cancelled => Self::Cancelled,
            StartError::Remote(_) | StartError::Disconnected(_) | _ => Self::Other,
        }
    }
}

/// Failed starts by reason.
#[derive(Debug, Default)]
pub struct StartFailureCounters([Counter; StartFailureReason::ALL.len()]);

impl StartFailureCounters {
    pub(crate) fn count(&self, reason: StartFailureReason) {
        self.0[reason as usize].increment();
    }

    /// Returns the label and count of each reason.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        labelled(&StartFailureReason::ALL, &self.0)
    }
}

/// Network policy decision about one connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PolicyDecisionKind {
    /// Allowed.
    Allow,
    /// Denied.
    Deny,
    /// A person must decide.
    Ask,
}

impl PolicyDecisionKind {
    const ALL: [(Self, &str); 3] = [
        (Self::Allow, "allow"),
        (Self::Deny, "deny"),
        (Self::Ask, "ask"),
    ];

    /// Parses the name on the wire.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let entry = Self::ALL.iter().find(|(_, label)| *label == name);
        entry.map(|(kind, _)| *kind)
    }
}

/// Network policy decisions by kind.
#[derive(Debug, Default)]
pub struct PolicyDecisionCounters([Counter; PolicyDecisionKind::ALL.len()]);

impl PolicyDecisionCounters {
    pub(crate) fn count(&self, kind: PolicyDecisionKind) {
        self.0[kind as usize].increment();
    }

    /// Returns the label and count of each decision.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        labelled(&PolicyDecisionKind::ALL, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_counted_in_every_bucket_that_fits() {
        let histogram = LatencyHistogram::default();
        for micros in [50, 51, 400_000_000] {
            histogram.record(Duration::from_micros(micros));
        }
        let values = histogram.values();
        assert_eq!(values.at_most[..3], [1, 2, 2]);
        assert_eq!(values.at_most[BUCKET_BOUNDS_MICROS.len() - 1], 2);
        assert_eq!(values.count, 3);
        assert_eq!(values.sum, Duration::from_micros(400_000_101));
    }

    #[test]
    fn each_kind_is_counted_under_its_label() {
        let exit_causes = ExitCauseCounters::default();
        CAUSES
            .iter()
            .for_each(|(cause, _)| exit_causes.count(*cause));
        exit_causes.count(ExitCause::WallLimit);
        for (name, count) in exit_causes.values() {
            assert_eq!(count, 1 + u64::from(name == "wall_limit"), "{name}");
        }
        let start_failures = StartFailureCounters::default();
        start_failures.count(StartFailureReason::Table);
        let counted: Vec<_> = start_failures
            .values()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(counted, [("table", 1)]);
        for (index, (reason, _)) in StartFailureReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
        let decisions = PolicyDecisionCounters::default();
        decisions.count(PolicyDecisionKind::parse("deny").unwrap());
        let counted: Vec<_> = decisions.values().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("deny", 1)]);
        assert_eq!(PolicyDecisionKind::parse("perhaps"), None);
    }
}
