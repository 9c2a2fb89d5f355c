//! Metrics and tracing of requests: the guard of a request in flight, with its latency, outcome and
//! span, and the counters by method and outcome. Invariant: each request is counted exactly once,
//! also if its connection ends first. Elsewhere: exporting spans, which the embedder does with a
//! `tracing` subscriber.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use exec_wire::{
    error::{ErrorCode, RpcError},
    id::{ProcessId, SessionId},
    message::TraceContext,
    method::MethodName,
};
use tracing::{Span, field::Empty};

use crate::metrics::{Counter, Gauge, LatencyHistogram, ServiceMetrics};

/// Makes a span the child of its origin in the exported trace. A parent in the subscriber's span
/// tree stays open as long as its children; this callback links spans without that.
pub type ContinueTrace = fn(&Span, TraceOrigin<'_>);

/// Parent of a span in a trace.
#[derive(Clone, Copy, Debug)]
pub enum TraceOrigin<'a> {
    /// Trace context of a request.
    Trace(&'a TraceContext),
    /// Another span of this process, which may end first.
    Span(&'a Span),
}

/// Maximum length of client-provided text in spans and logs.
const MAX_LOGGED_BYTES: usize = 128;
/// Maximum length of an accepted `traceparent`: the current version has 55 bytes.
const MAX_TRACEPARENT_BYTES: usize = 128;
/// Maximum length of an accepted `tracestate`: W3C requires propagating this much.
const MAX_TRACESTATE_BYTES: usize = 512;

/// A request in flight. Dropping it records its outcome.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    metrics: Arc<ServiceMetrics>,
    method: MethodName,
    since: Instant,
    /// `Cancelled` until [`RequestGuard::finish`] sets the actual outcome.
    outcome: RequestOutcome,
    pub(crate) span: Span,
}

impl RequestGuard {
    /// Opens the span of a request and counts it as in flight.
    pub(crate) fn new(
        metrics: &Arc<ServiceMetrics>,
        method: MethodName,
        session: Option<&SessionId>,
        trace: Option<&TraceContext>,
        continue_trace: ContinueTrace,
    ) -> Self {
        metrics.requests.in_flight.enter();
        let span = tracing::info_span!(
            target: "exec_service::request", "request",
            otel.name = method.as_str(),
            otel.kind = "server",
            otel.status_code = Empty,
            rpc.system = "jsonrpc",
            rpc.method = method.as_str(),
            rpc.jsonrpc.error_code = Empty,
            outcome = Empty,
            session = Empty,
            process_id = Empty,
            traceparent = Empty,
        );
        if !span.is_disabled() {
            if let Some(session) = session {
                span.record("session", session.redacted());
            }
            if let Some(trace) = trace.filter(|trace| is_within_limits(trace)) {
                span.record("traceparent", trace.traceparent.as_deref());
                continue_trace(&span, TraceOrigin::Trace(trace));
            }
        }
        Self {
            metrics: Arc::clone(metrics),
            method,
            since: Instant::now(),
            outcome: RequestOutcome::Cancelled,
            span,
        }
    }

    /// Records the process id in the span.
    pub(crate) fn record_process(&self, process: Option<&ProcessId>) {
        if let (false, Some(process)) = (self.span.is_disabled(), process) {
            self.span
                .record("process_id", truncate_for_log(process.as_str()));
        }
    }

    /// Records the outcome of a completed request.
    pub(crate) fn finish(mut self, outcome: RequestOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let (outcome, requests) = (self.outcome, &self.metrics.requests);
        requests.in_flight.leave();
        requests.record_end(self.method, outcome, self.since.elapsed());
        if outcome != RequestOutcome::Ok && !self.span.is_disabled() {
            self.span.record("otel.status_code", "ERROR");
            self.span.record("rpc.jsonrpc.error_code", outcome.code());
            self.span.record("outcome", outcome.as_str());
        }
    }
}

/// Truncates client-provided text for spans and logs.
pub(crate) fn truncate_for_log(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_LOGGED_BYTES)]
}

/// Returns whether a trace context is short enough. [`ContinueTrace`] validates its content.
fn is_within_limits(trace: &TraceContext) -> bool {
    let within = |text: &Option<String>, max| text.as_ref().is_none_or(|text| text.len() <= max);
    within(&trace.traceparent, MAX_TRACEPARENT_BYTES)
        && within(&trace.tracestate, MAX_TRACESTATE_BYTES)
}

/// Metrics of all requests.
#[derive(Debug)]
pub struct RequestMetrics {
    methods: Box<[MethodMetrics]>,
    /// Requests in flight.
    pub in_flight: Gauge,
    /// Requests for unknown methods.
    pub unknown_methods: Counter,
    /// Malformed messages.
    pub malformed: Counter,
}

/// Metrics of one method.
#[derive(Debug)]
pub struct MethodMetrics {
    /// The method.
    pub method: MethodName,
    outcomes: [Counter; RequestOutcome::TABLE.len()],
    /// Time from the arrival of a request to its response. Cancelled requests are excluded.
    pub latency: LatencyHistogram,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        let new_metrics = |method: &MethodName| MethodMetrics {
            method: *method,
            outcomes: Default::default(),
            latency: LatencyHistogram::default(),
        };
        Self {
            methods: MethodName::ALL.iter().map(new_metrics).collect(),
            in_flight: Gauge::default(),
            unknown_methods: Counter::default(),
            malformed: Counter::default(),
        }
    }
}

impl RequestMetrics {
    pub(crate) fn record_end(&self, method: MethodName, outcome: RequestOutcome, after: Duration) {
        // The table has one row for each method, in declaration order.
        if let Some(method_metrics) = self.methods.get(method as usize) {
            method_metrics.outcomes[outcome as usize].increment();
            if outcome != RequestOutcome::Cancelled {
                method_metrics.latency.record(after);
            }
        }
    }

    /// Returns the methods that were called at least once.
    pub fn called_methods(&self) -> impl Iterator<Item = &MethodMetrics> {
        self.methods
            .iter()
            .filter(|method_metrics| method_metrics.total() > 0)
    }
}

impl MethodMetrics {
    /// Returns the count of each outcome that occurred.
    pub fn outcomes(&self) -> impl Iterator<Item = (RequestOutcome, u64)> {
        let outcomes = RequestOutcome::TABLE.iter().map(|(outcome, ..)| *outcome);
        let counts = self.outcomes.iter().map(Counter::value);
        outcomes.zip(counts).filter(|(_, count)| *count > 0)
    }

    fn total(&self) -> u64 {
        self.outcomes.iter().map(Counter::value).sum()
    }
}

/// Outcome of a request. The set of labels is fixed, independent of client input.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestOutcome {
    /// With a result.
    Ok,
    /// With -32600.
    InvalidRequest,
    /// With -32602.
    InvalidParams,
    /// With -32004.
    NotFound,
    /// With -32010.
    SessionAttached,
    /// With -32603.
    Internal,
    /// With another code.
    OtherError,
    /// No response: the connection ended first.
    Cancelled,
}

impl RequestOutcome {
    /// Label of each outcome, and the JSON-RPC error code that it implies.
    const TABLE: [(Self, &'static str, Option<ErrorCode>); 8] = [
        (Self::Ok, "ok", None),
        (
            Self::InvalidRequest,
            "invalid_request",
            Some(ErrorCode::INVALID_REQUEST),
        ),
        (
            Self::InvalidParams,
            "invalid_params",
            Some(ErrorCode::INVALID_PARAMS),
        ),
        (Self::NotFound, "not_found", Some(ErrorCode::NOT_FOUND)),
        (
            Self::SessionAttached,
            "session_attached",
            Some(ErrorCode::SESSION_ATTACHED),
        ),
        (Self::Internal, "internal", Some(ErrorCode::INTERNAL)),
        (Self::OtherError, "other_error", None),
        (Self::Cancelled, "cancelled", None),
    ];

    /// Returns the outcome of an error response.
    pub fn of(error: &RpcError) -> Self {
        let mut outcomes = Self::TABLE.iter();
        let found = outcomes.find(|(.., code)| *code == Some(error.code));
        found.map_or(Self::OtherError, |(outcome, ..)| *outcome)
    }

    /// Returns the JSON-RPC error code, if the outcome implies one.
    pub fn code(self) -> Option<i64> {
        let (.., code) = Self::TABLE[self as usize];
        code.map(|code| code.0)
    }

    /// Returns the label.
    pub fn as_str(self) -> &'static str {
        let (_, label, _) = Self::TABLE[self as usize];
        label
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_guard(metrics: &Arc<ServiceMetrics>) -> RequestGuard {
        RequestGuard::new(metrics, MethodName::ProcessRead, None, None, |_, _| {})
    }

    #[test]
    fn request_is_counted_once_for_every_outcome() {
        let metrics = Arc::new(ServiceMetrics::default());
        let (answered, dropped) = (new_guard(&metrics), new_guard(&metrics));
        assert_eq!(metrics.requests.in_flight.value(), 2);
        answered.finish(RequestOutcome::NotFound);
        drop(dropped);
        assert_eq!(metrics.requests.in_flight.value(), 0);
        let outcomes: Vec<_> = metrics
            .requests
            .called_methods()
            .flat_map(|method_metrics| method_metrics.outcomes())
            .collect();
        assert_eq!(
            outcomes,
            [
                (RequestOutcome::NotFound, 1),
                (RequestOutcome::Cancelled, 1)
            ]
        );
    }

    #[test]
    fn client_text_is_truncated_for_logs() {
        assert_eq!(truncate_for_log("short"), "short");
        assert_eq!(truncate_for_log(&"\u{e9}".repeat(100)).len(), 128);
        assert_eq!(
            truncate_for_log(&format!("x{}", "\u{e9}".repeat(100))).len(),
            127
        );
        let trace = |length| TraceContext {
            traceparent: Some("0".repeat(length)),
            tracestate: None,
        };
        assert!(is_within_limits(&trace(55)));
        assert!(!is_within_limits(&trace(129)));
    }

    #[test]
    fn each_method_has_its_own_counters() {
        let metrics = RequestMetrics::default();
        for method in MethodName::ALL {
            metrics.record_end(*method, RequestOutcome::Ok, Duration::ZERO);
        }
        metrics.record_end(
            MethodName::ProcessRead,
            RequestOutcome::Cancelled,
            Duration::ZERO,
        );
        let counted: Vec<_> = metrics
            .called_methods()
            .map(|method_metrics| method_metrics.method)
            .collect();
        assert_eq!(counted, MethodName::ALL);
        for method_metrics in metrics.called_methods() {
            let outcomes: Vec<_> = method_metrics.outcomes().collect();
            let expected: &[_] = match method_metrics.method == MethodName::ProcessRead {
                true => &[(RequestOutcome::Ok, 1), (RequestOutcome::Cancelled, 1)],
                false => &[(RequestOutcome::Ok, 1)],
            };
            assert_eq!(outcomes, expected, "{:?}", method_metrics.method);
            assert_eq!(method_metrics.latency.values().count, 1);
        }
    }
}
