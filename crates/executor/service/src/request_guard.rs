//! Metrics and tracing of a request in flight: latency, outcome and span. Invariant: each request
//! is counted exactly once, also if its connection ends first. Elsewhere: exporting spans, which
//! the embedder does with a `tracing` subscriber.

use std::{sync::Arc, time::Instant};

use exec_wire::{
    id::{ProcessId, SessionId},
    message::TraceContext,
    method::MethodName,
};
use tracing::{Span, field::Empty};

use crate::metrics::{RequestOutcome, ServiceMetrics};

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
        requests.ended(self.method, outcome, self.since.elapsed());
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
            .flat_map(|meter| meter.outcomes())
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
}
