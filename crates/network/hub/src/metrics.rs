//! Prometheus metrics of the hub.
//!
//! Each hub has its own recorder, so that two hubs in one process stay separate. Handles are
//! created once; counting a batch of frames is one atomic addition.
//! Elsewhere: the HTTP listener; `hub` serves `/metrics` with [`HubMetrics::render`].

use http::StatusCode;
use metrics::{Counter, Gauge, Key, KeyName, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::rendezvous::WebSocketClose;

/// The hub's metrics.
pub struct HubMetrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    /// Open executor websockets.
    pub(crate) executors: Gauge,
    /// Open harness websockets.
    pub(crate) harnesses: Gauge,
    /// Frames sent to executors.
    pub(crate) to_executor: TrafficCounters,
    /// Frames sent to harnesses.
    pub(crate) to_harness: TrafficCounters,
    /// Frames of a harness on a stream of another harness.
    pub(crate) foreign: Counter,
    /// Frames of an executor on an unknown stream.
    pub(crate) unknown: Counter,
    /// Messages that are not valid frames.
    pub(crate) garbage: Counter,
    /// Streams refused by the hub.
    pub(crate) refused_streams: Counter,
    /// Streams reset because the harness disconnected.
    pub(crate) lost_streams: Counter,
}

impl std::fmt::Debug for HubMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HubMetrics(..)")
    }
}

/// Frames and bytes in one direction.
#[derive(Debug)]
pub(crate) struct TrafficCounters {
    frames: Counter,
    bytes: Counter,
}

impl TrafficCounters {
    /// Adds a batch.
    pub(crate) fn add(&self, batch: FrameBatch) {
        if batch.frames > 0 {
            self.frames.increment(batch.frames);
            self.bytes.increment(batch.bytes);
        }
    }
}

/// Size of a batch of frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameBatch {
    frames: u64,
    bytes: u64,
}

impl FrameBatch {
    /// Adds one frame.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.frames += 1;
        self.bytes += bytes as u64;
    }
}

impl Default for HubMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl HubMetrics {
    /// Creates metrics at zero.
    pub fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        for (name, unit, description) in DESCRIPTIONS {
            let name = KeyName::from_const_str(name);
            match unit {
                None => recorder.describe_gauge(name, None, (*description).into()),
                Some(unit) => recorder.describe_counter(name, Some(*unit), (*description).into()),
            }
        }
        let gauge = |role| recorder.register_gauge(&key(SOCKETS, "role", role), &METADATA);
        let counter = |name, label, value: &'static str| {
            recorder.register_counter(&key(name, label, value), &METADATA)
        };
        let traffic = |to| TrafficCounters {
            frames: counter(FRAMES, "to", to),
            bytes: counter(BYTES, "to", to),
        };
        Self {
            executors: gauge("executor"),
            harnesses: gauge("harness"),
            to_executor: traffic("executor"),
            to_harness: traffic("harness"),
            foreign: counter(DROPPED, "reason", "foreign"),
            unknown: counter(DROPPED, "reason", "unknown_stream"),
            garbage: counter(DROPPED, "reason", "garbage"),
            refused_streams: counter(RESETS, "reason", "refused"),
            lost_streams: counter(RESETS, "reason", "harness_disconnected"),
            recorder,
            handle,
        }
    }

    /// Counts a response. `route` is a fixed name, never a path chosen by a client.
    pub fn record_response(&self, route: &'static str, status: StatusCode) {
        let labels = vec![
            Label::new("route", route),
            Label::new("status", status.as_str().to_owned()),
        ];
        let key = Key::from_parts(REQUESTS, labels);
        self.recorder.register_counter(&key, &METADATA).increment(1);
    }

    /// Counts a closed websocket.
    pub(crate) fn record_close(&self, role: &'static str, why: WebSocketClose) {
        let labels = vec![Label::new("role", role), Label::new("reason", why.name())];
        let key = Key::from_parts(ENDED, labels);
        self.recorder.register_counter(&key, &METADATA).increment(1);
    }

    /// Sets the cluster gauges.
    pub(crate) fn mesh(&self, nodes: usize, circuits: usize) {
        for (name, value) in [(NODES, nodes), (BRIDGED, circuits)] {
            let gauge = self
                .recorder
                .register_gauge(&Key::from_name(name), &METADATA);
            // Far below the precision limit of f64.
            gauge.set(value as f64);
        }
    }

    /// Renders all metrics in the Prometheus text format.
    pub fn render(&self) -> String {
        self.handle.render()
    }
}

const SOCKETS: &str = "exec_hub_sockets";
const FRAMES: &str = "exec_hub_frames_total";
const BYTES: &str = "exec_hub_frame_bytes_total";
const DROPPED: &str = "exec_hub_frames_dropped_total";
const RESETS: &str = "exec_hub_streams_reset_total";
const ENDED: &str = "exec_hub_sockets_ended_total";
const REQUESTS: &str = "exec_hub_requests_total";
const NODES: &str = "exec_hub_nodes";
const BRIDGED: &str = "exec_hub_bridged_circuits";

const METADATA: Metadata<'_> = Metadata::new("exec_hub", Level::INFO, None);

/// Name, unit (none for gauges) and description.
const DESCRIPTIONS: &[(&str, Option<Unit>, &str)] = &[
    (SOCKETS, None, "Open websockets by role"),
    (FRAMES, Some(Unit::Count), "Frames forwarded, by receiver"),
    (
        BYTES,
        Some(Unit::Count),
        "Bytes of frames forwarded, by receiver",
    ),
    (DROPPED, Some(Unit::Count), "Messages dropped, by reason"),
    (
        RESETS,
        Some(Unit::Count),
        "Streams reset by the hub, by reason",
    ),
    (
        ENDED,
        Some(Unit::Count),
        "Websockets closed, by role and reason",
    ),
    (NODES, None, "Live hub nodes, including this one"),
    (BRIDGED, None, "Circuits bridged to other nodes"),
    (
        REQUESTS,
        Some(Unit::Count),
        "HTTP responses, by route and status",
    ),
];

fn key(name: &'static str, label: &'static str, value: &'static str) -> Key {
    Key::from_parts(name, vec![Label::from_static_parts(label, value)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_rendered() {
        let metrics = HubMetrics::new();
        metrics.executors.increment(2);
        metrics.executors.decrement(1);
        let mut batch = FrameBatch::default();
        batch.add(10);
        batch.add(5);
        metrics.to_harness.add(batch);
        metrics.record_response("connect", StatusCode::CONFLICT);
        metrics.record_close("harness", WebSocketClose::Garbage);
        let text = metrics.render();
        for line in [
            "exec_hub_sockets{role=\"executor\"} 1",
            "exec_hub_frames_total{to=\"harness\"} 2",
            "exec_hub_frame_bytes_total{to=\"harness\"} 15",
            "exec_hub_requests_total{route=\"connect\",status=\"409\"} 1",
            "exec_hub_sockets_ended_total{role=\"harness\",reason=\"garbage\"} 1",
        ] {
            assert!(text.lines().any(|seen| seen == line), "{line}\n{text}");
        }
    }

    #[test]
    fn metrics_of_two_hubs_are_separate() {
        let (one, two) = (HubMetrics::new(), HubMetrics::new());
        one.foreign.increment(1);
        let line = "exec_hub_frames_dropped_total{reason=\"foreign\"} 1";
        assert!(one.render().contains(line));
        assert!(!two.render().contains(line));
    }
}
