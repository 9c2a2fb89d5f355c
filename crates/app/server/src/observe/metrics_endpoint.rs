//! The numbers of a server, in the text format of Prometheus.
//!
//! Written by hand, not by the recorder that the hub uses: the service counts in plain numbers, its
//! histograms included, and there is nothing left for a recorder to do.

use std::{
    fmt::{self, Display},
    fs,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use exec_service::{
    Service,
    meters::{BOUNDS_MICROS, HistogramValues, Levels, Meters},
};
use exec_transport::{
    http::{AllowedHosts, Exposition, HostNames, Lookout, PendingLimits, site::SiteOptions},
    listen::ListenUrl,
    listener::Listener,
};

use crate::config::MetricsAddress;

/// What a server has to show.
#[derive(Clone, Debug)]
pub(crate) struct MetricsRenderer {
    service: Service,
    since: Instant,
    started: SystemTime,
}

impl MetricsRenderer {
    /// Shows a service that begins now.
    pub(crate) fn new(service: Service) -> Self {
        Self {
            service,
            since: Instant::now(),
            started: SystemTime::now(),
        }
    }

    /// Returns what `/metrics` answers.
    pub(crate) fn exposition(&self) -> Exposition {
        let exhibit = self.clone();
        Exposition::new(move || exhibit.render())
    }

    fn render(&self) -> String {
        let mut page = MetricsPage::default();
        self.this_program(&mut page);
        let (meters, levels) = (self.service.meters(), self.service.levels());
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
            "When the server began, in seconds since 1970",
            started.as_secs_f64(),
        );
        page.gauge(
            "exec_server_uptime_seconds",
            "How long ago that was",
            self.since.elapsed().as_secs_f64(),
        );
        if let Some(bytes) = resident_bytes() {
            let name = "process_resident_memory_bytes";
            page.gauge(name, "Memory of the server itself, without commands", bytes);
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // One of them is the directory's own.
            let open = entries.count().saturating_sub(1);
            page.gauge("process_open_fds", "Descriptors of the server", open);
        }
    }
}

fn connections(page: &mut MetricsPage, meters: &Meters, levels: &Levels) {
    page.gauge(
        "exec_server_connections",
        "Connections that are open",
        meters.connections.value(),
    );
    page.counter(
        "exec_server_connections_total",
        "Connections that were opened",
        meters.connections_opened.value(),
    );
    page.family(
        (
            "exec_server_sessions",
            "gauge",
            "Sessions, with a connection or waiting for their client",
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
            "Sessions that began, were resumed, or ended because nobody came back",
        ),
        "event",
        [
            ("opened", meters.sessions_opened.value()),
            ("resumed", meters.sessions_resumed.value()),
            ("expired", meters.sessions_expired.value()),
        ],
    );
}

fn processes(page: &mut MetricsPage, meters: &Meters, levels: &Levels) {
    page.family(
        (
            "exec_server_processes",
            "gauge",
            "Processes that run, and finished ones that can still be read",
        ),
        "state",
        [
            ("running", levels.processes_running),
            ("finished", levels.processes_finished),
        ],
    );
    page.gauge(
        "exec_server_detached_processes",
        "Processes that run and belong to no session",
        levels.detached_running,
    );
    page.counter(
        "exec_server_processes_started_total",
        "Processes that were started",
        meters.processes_started.value(),
    );
    page.family(
        (
            "exec_server_processes_ended_total",
            "counter",
            "Processes that ended, by cause",
        ),
        "cause",
        meters.processes_ended.values(),
    );
    page.family(
        (
            "exec_server_process_refusals_total",
            "counter",
            "Processes that did not start, by reason",
        ),
        "reason",
        meters.process_refusals.values(),
    );
    page.counter(
        "exec_server_sandbox_denials_total",
        "Processes that ended after their sandbox seems to have refused something",
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

fn requests(page: &mut MetricsPage, meters: &Meters) {
    let requests = &meters.requests;
    page.gauge(
        "exec_server_requests_in_flight",
        "Requests that are not answered yet, also those that wait for something",
        requests.in_flight.value(),
    );
    let name = "exec_server_requests_total";
    page.begin(
        name,
        "counter",
        "Requests that ended, by method and outcome",
    );
    for meter in requests.used() {
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
        "From the arrival of a request to its answer, by method",
    );
    for meter in requests.used() {
        let labels = format!("method=\"{}\"", meter.method.as_str());
        page.histogram(name, &labels, &meter.latency.values());
    }
    page.family(
        (
            "exec_server_bad_messages_total",
            "counter",
            "Messages that were none, asked for no method there is, or answered nothing",
        ),
        "kind",
        [
            ("malformed", requests.malformed.value()),
            ("unknown_method", requests.unknown_methods.value()),
            ("unsolicited_response", meters.unsolicited_responses.value()),
        ],
    );
}

fn bytes(page: &mut MetricsPage, meters: &Meters, levels: &Levels) {
    for (name, help, counter) in [
        (
            "exec_server_output_bytes_total",
            "Output of processes sent to clients as it came",
            &meters.output_bytes,
        ),
        (
            "exec_server_input_bytes_total",
            "Input that clients gave to processes",
            &meters.input_bytes,
        ),
        (
            "exec_server_file_read_bytes_total",
            "Content of files read for clients",
            &meters.file_read_bytes,
        ),
        (
            "exec_server_file_written_bytes_total",
            "Content of files written by clients",
            &meters.file_written_bytes,
        ),
        (
            "exec_server_messages_received_total",
            "Messages that came",
            &meters.messages_received,
        ),
        (
            "exec_server_received_bytes_total",
            "Size of the messages that came, without framing",
            &meters.received_bytes,
        ),
        (
            "exec_server_sent_bytes_total",
            "Bytes handed to transports",
            &meters.sent_bytes,
        ),
    ] {
        page.counter(name, help, counter.value());
    }
    page.gauge(
        "exec_server_outbox_bytes",
        "Answers that wait for clients to take them, of all connections with a session",
        levels.outbox_bytes,
    );
    page.gauge(
        "exec_server_retained_output_bytes",
        "Output of processes that is kept to be read again",
        levels.retained_bytes,
    );
}

/// Returns how much memory this program has, if the kernel tells.
pub(crate) fn resident_bytes() -> Option<u64> {
    let sizes = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = sizes.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

/// A page that is being written.
#[derive(Debug, Default)]
pub(super) struct MetricsPage(String);

impl MetricsPage {
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

/// Connections that may be open at once: those who watch are few.
const MAX_CONNECTIONS: usize = 64;

/// Binds the listener, and returns what serves it until it is dropped.
pub(crate) async fn serve_metrics(
    address: MetricsAddress,
    metrics: Exposition,
    draining: Arc<AtomicBool>,
    names: &HostNames,
) -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let address = address.address();
    let listener = Listener::bind_tcp(address, false)
        .await
        .with_context(|| format!("cannot listen on {address} for --metrics-listen"))?;
    if let ListenUrl::Ws(address) = listener.address() {
        tracing::info!(%address, "metrics are served");
    }
    let site = Arc::new(Lookout { metrics, draining });
    let options = SiteOptions {
        max_connections: 0,
        pending: PendingLimits {
            max_connections: MAX_CONNECTIONS,
            max_per_address: MAX_CONNECTIONS,
            ..PendingLimits::default()
        },
        hosts: AllowedHosts::new(names.iter()),
        ..SiteOptions::default()
    };
    Ok(listener.serve_site(site, None, options, |never, _| match never {}))
}
