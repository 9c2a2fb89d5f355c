//! Metrics of a server in the Prometheus text format, and the listener for them.

use std::{
    fs,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use exec_service::{
    Service,
    metrics::{BUCKET_BOUNDS_MICROS, GaugeSnapshot, ServiceMetrics},
};
use exec_transport::{
    http::{
        AllowedHosts, HealthService, HostNames, MetricsEndpoint, PendingLimits,
        service::HttpServiceOptions,
    },
    listen_url::ListenUrl,
    listener::Listener,
    metrics::MetricsPage,
};

use crate::config::MetricsAddress;

/// Renders the metrics of a server.
#[derive(Clone, Debug)]
pub(crate) struct MetricsRenderer {
    service: Service,
    since: Instant,
    started: SystemTime,
}

impl MetricsRenderer {
    /// Creates a renderer for a service that starts now.
    pub(crate) fn new(service: Service) -> Self {
        Self {
            service,
            since: Instant::now(),
            started: SystemTime::now(),
        }
    }

    /// Returns the handler of `/metrics`.
    pub(crate) fn endpoint(&self) -> MetricsEndpoint {
        let exhibit = self.clone();
        MetricsEndpoint::new(move || exhibit.render())
    }

    fn render(&self) -> String {
        let mut page = MetricsPage::default();
        self.this_program(&mut page);
        let (meters, levels) = (self.service.metrics(), self.service.gauges());
        connections(&mut page, meters, &levels);
        processes(&mut page, meters, &levels);
        requests(&mut page, meters);
        bytes(&mut page, meters, &levels);
        page.into_text()
    }

    fn this_program(&self, page: &mut MetricsPage) {
        let version = env!("CARGO_PKG_VERSION");
        let name = "exec_server_build_info";
        page.begin(name, "gauge", "Version of the program; always 1");
        page.sample(name, &format!("version=\"{version}\""), 1);
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        page.gauge(
            "process_start_time_seconds",
            "Start time of the server, in seconds since 1970",
            started.as_secs_f64(),
        );
        page.gauge(
            "exec_server_uptime_seconds",
            "Uptime in seconds",
            self.since.elapsed().as_secs_f64(),
        );
        if let Some(bytes) = resident_bytes() {
            let name = "process_resident_memory_bytes";
            page.gauge(
                name,
                "Resident memory of the server itself, without commands",
                bytes,
            );
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // One entry is the directory's own descriptor.
            let open = entries.count().saturating_sub(1);
            page.gauge(
                "process_open_fds",
                "Open file descriptors of the server",
                open,
            );
        }
    }
}

fn connections(page: &mut MetricsPage, meters: &ServiceMetrics, levels: &GaugeSnapshot) {
    page.gauge(
        "exec_server_connections",
        "Open connections",
        meters.connections.value(),
    );
    page.counter(
        "exec_server_connections_total",
        "Opened connections",
        meters.connections_opened.value(),
    );
    page.family(
        (
            "exec_server_sessions",
            "gauge",
            "Sessions, attached or waiting for their client",
        ),
        "state",
        [
            ("attached", levels.sessions_attached),
            ("detached", levels.sessions_detached),
        ],
    );
    page.family(
        (
            "exec_server_session_events_total",
            "counter",
            "Sessions created, resumed, or expired",
        ),
        "event",
        [
            ("opened", meters.sessions_opened.value()),
            ("resumed", meters.sessions_resumed.value()),
            ("expired", meters.sessions_expired.value()),
        ],
    );
}

fn processes(page: &mut MetricsPage, meters: &ServiceMetrics, levels: &GaugeSnapshot) {
    page.family(
        (
            "exec_server_processes",
            "gauge",
            "Running processes, and exited ones that can still be read",
        ),
        "state",
        [
            ("running", levels.processes_running),
            ("finished", levels.processes_finished),
        ],
    );
    page.gauge(
        "exec_server_detached_processes",
        "Running processes without a session",
        levels.detached_running,
    );
    page.counter(
        "exec_server_processes_started_total",
        "Started processes",
        meters.processes_started.value(),
    );
    page.family(
        (
            "exec_server_processes_ended_total",
            "counter",
            "Exited processes, by cause",
        ),
        "cause",
        meters.processes_ended.values(),
    );
    page.family(
        (
            "exec_server_process_refusals_total",
            "counter",
            "Failed process starts, by reason",
        ),
        "reason",
        meters.start_failures.values(),
    );
    page.counter(
        "exec_server_sandbox_denials_total",
        "Exited processes with a possible sandbox denial",
        meters.sandbox_denials.value(),
    );
    page.family(
        (
            "exec_server_network_decisions_total",
            "counter",
            "Decisions about connections of processes with a managed network",
        ),
        "decision",
        meters.network_decisions.values(),
    );
}

fn requests(page: &mut MetricsPage, meters: &ServiceMetrics) {
    let requests = &meters.requests;
    page.gauge(
        "exec_server_requests_in_flight",
        "Pending requests, including those that wait",
        requests.in_flight.value(),
    );
    let name = "exec_server_requests_total";
    page.begin(name, "counter", "Completed requests, by method and outcome");
    for meter in requests.called_methods() {
        for (outcome, count) in meter.outcomes() {
            let (method, outcome) = (meter.method.as_str(), outcome.as_str());
            let labels = format!("method=\"{method}\",outcome=\"{outcome}\"");
            page.sample(name, &labels, count);
        }
    }
    let name = "exec_server_request_duration_seconds";
    page.begin(
        name,
        "histogram",
        "Time from receiving a request to its response, by method",
    );
    for meter in requests.called_methods() {
        let labels = format!("method=\"{}\"", meter.method.as_str());
        let latency = meter.latency.values();
        let bounds = BUCKET_BOUNDS_MICROS.map(Duration::from_micros);
        let buckets = bounds.into_iter().zip(latency.at_most);
        page.histogram(name, &labels, buckets, (latency.count, latency.sum));
    }
    page.family(
        (
            "exec_server_bad_messages_total",
            "counter",
            "Invalid messages: malformed, unknown method, or unexpected response",
        ),
        "kind",
        [
            ("malformed", requests.malformed.value()),
            ("unknown_method", requests.unknown_methods.value()),
            ("unsolicited_response", meters.unsolicited_responses.value()),
        ],
    );
}

fn bytes(page: &mut MetricsPage, meters: &ServiceMetrics, levels: &GaugeSnapshot) {
    for (name, help, counter) in [
        (
            "exec_server_output_bytes_total",
            "Process output streamed to clients",
            &meters.output_bytes,
        ),
        (
            "exec_server_input_bytes_total",
            "Input from clients to processes",
            &meters.input_bytes,
        ),
        (
            "exec_server_file_read_bytes_total",
            "File content read for clients",
            &meters.file_read_bytes,
        ),
        (
            "exec_server_file_written_bytes_total",
            "File content written by clients",
            &meters.file_written_bytes,
        ),
        (
            "exec_server_messages_received_total",
            "Received messages",
            &meters.messages_received,
        ),
        (
            "exec_server_received_bytes_total",
            "Size of received messages, without framing",
            &meters.received_bytes,
        ),
        (
            "exec_server_sent_bytes_total",
            "Bytes passed to transports",
            &meters.sent_bytes,
        ),
    ] {
        page.counter(name, help, counter.value());
    }
    page.gauge(
        "exec_server_outbox_bytes",
        "Responses queued for clients, over all connections with a session",
        levels.send_queue_bytes,
    );
    page.gauge(
        "exec_server_retained_output_bytes",
        "Retained process output",
        levels.retained_bytes,
    );
}

/// Returns the resident memory of this process, if known.
pub(crate) fn resident_bytes() -> Option<u64> {
    let sizes = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = sizes.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

/// Maximum connections to the metrics listener.
const MAX_CONNECTIONS: usize = 64;

/// Binds the listener, and returns the future that serves it.
pub(crate) async fn serve_metrics(
    address: MetricsAddress,
    metrics: MetricsEndpoint,
    draining: Arc<AtomicBool>,
    names: &HostNames,
) -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let address = address.address();
    let listener = Listener::bind_tcp(address, false)
        .await
        .with_context(|| format!("cannot listen on {address} for --metrics-listen"))?;
    if let ListenUrl::Ws(address) = listener.address() {
        tracing::info!(%address, "serving metrics");
    }
    let site = Arc::new(HealthService { metrics, draining });
    let options = HttpServiceOptions {
        max_connections: 0,
        pending: PendingLimits {
            max_connections: MAX_CONNECTIONS,
            max_per_address: MAX_CONNECTIONS,
            ..PendingLimits::default()
        },
        hosts: AllowedHosts::new(names.iter()),
        ..HttpServiceOptions::default()
    };
    Ok(listener.serve_http(site, None, options, |never, _| match never {}))
}
