//! Metrics of the hub.
//!
//! Counting a batch of frames is one atomic addition.
//! Elsewhere: the HTTP listener; `hub` serves `/metrics` with [`HubMetrics::render`].

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use exec_transport::metrics::{Counter, Gauge, MetricsPage};
use http::StatusCode;

use crate::rendezvous::WebSocketClose;

/// The hub's metrics.
#[derive(Debug, Default)]
pub struct HubMetrics {
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
    /// Closed websockets by role and reason.
    closes: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    /// Responses by route and status.
    responses: Mutex<BTreeMap<(&'static str, StatusCode), u64>>,
}

/// Frames and bytes in one direction.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    frames: Counter,
    bytes: Counter,
}

impl TrafficCounters {
    /// Adds a batch.
    pub(crate) fn add(&self, batch: FrameBatch) {
        if batch.frames > 0 {
            self.frames.add(batch.frames);
            self.bytes.add(batch.bytes);
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

/// Size of the cluster that a hub belongs to.
#[derive(Clone, Copy, Debug)]
pub struct ClusterGauges {
    /// Live nodes, including this one.
    pub nodes: usize,
    /// Circuits bridged to other nodes.
    pub circuits: usize,
}

impl HubMetrics {
    /// Counts a response. `route` is a fixed name, never a path chosen by a client.
    pub fn record_response(&self, route: &'static str, status: StatusCode) {
        count(&self.responses, (route, status));
    }

    /// Counts a closed websocket.
    pub(crate) fn record_close(&self, role: &'static str, why: WebSocketClose) {
        count(&self.closes, (role, why.name()));
    }

    /// Renders all metrics in the Prometheus text format.
    pub fn render(&self, cluster: Option<ClusterGauges>) -> String {
        let mut page = MetricsPage::default();
        let (to_executor, to_harness) = (&self.to_executor, &self.to_harness);
        let sockets = [
            ("executor", self.executors.value()),
            ("harness", self.harnesses.value()),
        ];
        let help = "Open websockets by role";
        page.family(("exec_hub_sockets", "gauge", help), "role", sockets);
        let frames = [
            ("executor", to_executor.frames.value()),
            ("harness", to_harness.frames.value()),
        ];
        let help = "Frames forwarded, by receiver";
        page.family(("exec_hub_frames_total", "counter", help), "to", frames);
        let bytes = [
            ("executor", to_executor.bytes.value()),
            ("harness", to_harness.bytes.value()),
        ];
        let help = "Bytes of frames forwarded, by receiver";
        page.family(("exec_hub_frame_bytes_total", "counter", help), "to", bytes);
        let dropped = [
            ("foreign", self.foreign.value()),
            ("unknown_stream", self.unknown.value()),
            ("garbage", self.garbage.value()),
        ];
        let name = "exec_hub_frames_dropped_total";
        let help = "Messages dropped, by reason";
        page.family((name, "counter", help), "reason", dropped);
        let reset = [
            ("refused", self.refused_streams.value()),
            ("harness_disconnected", self.lost_streams.value()),
        ];
        let name = "exec_hub_streams_reset_total";
        let help = "Streams reset by the hub, by reason";
        page.family((name, "counter", help), "reason", reset);
        let name = "exec_hub_sockets_ended_total";
        page.begin(name, "counter", "Websockets closed, by role and reason");
        for ((role, reason), count) in snapshot(&self.closes) {
            let labels = format!("role=\"{role}\",reason=\"{reason}\"");
            page.sample(name, &labels, count);
        }
        let name = "exec_hub_requests_total";
        page.begin(name, "counter", "HTTP responses, by route and status");
        for ((route, status), count) in snapshot(&self.responses) {
            let status = status.as_u16();
            let labels = format!("route=\"{route}\",status=\"{status}\"");
            page.sample(name, &labels, count);
        }
        if let Some(ClusterGauges { nodes, circuits }) = cluster {
            let help = "Live hub nodes, including this one";
            page.gauge("exec_hub_nodes", help, nodes);
            let help = "Circuits bridged to other nodes";
            page.gauge("exec_hub_bridged_circuits", help, circuits);
        }
        page.into_text()
    }
}

fn count<K: Ord>(counts: &Mutex<BTreeMap<K, u64>>, key: K) {
    let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    *counts.entry(key).or_default() += 1;
}

fn snapshot<K: Clone>(counts: &Mutex<BTreeMap<K, u64>>) -> BTreeMap<K, u64> {
    counts
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_rendered() {
        let metrics = HubMetrics::default();
        metrics.executors.enter();
        metrics.executors.enter();
        metrics.executors.leave();
        let mut batch = FrameBatch::default();
        batch.add(10);
        batch.add(5);
        metrics.to_harness.add(batch);
        metrics.record_response("connect", StatusCode::CONFLICT);
        metrics.record_close("harness", WebSocketClose::Garbage);
        let text = metrics.render(None);
        for line in [
            "exec_hub_sockets{role=\"executor\"} 1",
            "exec_hub_frames_total{to=\"harness\"} 2",
            "exec_hub_frame_bytes_total{to=\"harness\"} 15",
            "exec_hub_requests_total{route=\"connect\",status=\"409\"} 1",
            "exec_hub_sockets_ended_total{role=\"harness\",reason=\"garbage\"} 1",
        ] {
            assert!(text.lines().any(|seen| seen == line), "{line}\n{text}");
        }
        assert!(!text.contains("exec_hub_nodes"), "{text}");
    }

    #[test]
    fn cluster_gauges_are_rendered_in_a_cluster() {
        let cluster = ClusterGauges {
            nodes: 3,
            circuits: 2,
        };
        let text = HubMetrics::default().render(Some(cluster));
        for line in ["exec_hub_nodes 3", "exec_hub_bridged_circuits 2"] {
            assert!(text.lines().any(|seen| seen == line), "{line}\n{text}");
        }
    }

    #[test]
    fn metrics_of_two_hubs_are_separate() {
        let (one, two) = (HubMetrics::default(), HubMetrics::default());
        one.foreign.increment();
        let line = "exec_hub_frames_dropped_total{reason=\"foreign\"} 1";
        assert!(one.render(None).contains(line));
        assert!(!two.render(None).contains(line));
    }
}
