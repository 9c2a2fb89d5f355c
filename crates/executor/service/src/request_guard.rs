//! A request under observation: how long it takes, how it ends, and the span that others see of it.
//! Invariant: each is counted once, also if its connection ends first.
//! Not here: where spans go. Whoever embeds the service subscribes to them.

use std::{sync::Arc, time::Instant};

use exec_wire::{
    id::{ProcessId, SessionId},
    message::Trace,
    method::MethodName,
};
use tracing::{Span, field::Empty};

use crate::meters::{Meters, Outcome};

/// Makes a span the child of what it comes from. A span of a subscriber's own tree stays open as long as its
/// children; this is for those that are not to.
pub type ContinueTrace = fn(&Span, Origin<'_>);

/// What a span comes from.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// The trace that a request came with.
    Trace(&'a Trace),
    /// Another span here, which ends on its own.
    Span(&'a Span),
}

/// Longest text of a client that is shown in a span or a log.
const SHOWN_BYTES: usize = 128;
/// Longest `traceparent` that is looked at: the version in use has 55 bytes.
const TRACEPARENT_BYTES: usize = 128;
/// Longest `tracestate` that is looked at: what W3C says must be passed on.
const TRACESTATE_BYTES: usize = 512;

/// A request that is not answered yet.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    meters: Arc<Meters>,
    method: MethodName,
    since: Instant,
    /// How it ended; until then, that its connection did.
    outcome: Outcome,
    pub(crate) span: Span,
}

impl RequestGuard {
    /// Begins to observe a request.
    pub(crate) fn new(
        meters: &Arc<Meters>,
        method: MethodName,
        session: Option<&SessionId>,
        trace: Option<&Trace>,
        continue_trace: ContinueTrace,
    ) -> Self {
        meters.requests.in_flight.enter();
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
                span.record("session", session.shown());
            }
            if let Some(trace) = trace.filter(|trace| is_within_limits(trace)) {
                span.record("traceparent", trace.traceparent.as_deref());
                continue_trace(&span, Origin::Trace(trace));
            }
        }
        Self {
            meters: Arc::clone(meters),
            method,
            since: Instant::now(),
            outcome: Outcome::Cancelled,
            span,
        }
    }

    /// Notes which process a request is about.
    pub(crate) fn record_process(&self, process: Option<&ProcessId>) {
        if let (false, Some(process)) = (self.span.is_disabled(), process) {
            self.span
                .record("process_id", truncate_for_log(process.as_str()));
        }
    }

    /// The request is answered.
    pub(crate) fn finish(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let (outcome, requests) = (self.outcome, &self.meters.requests);
        requests.in_flight.leave();
        requests.ended(self.method, outcome, self.since.elapsed());
        if outcome != Outcome::Ok && !self.span.is_disabled() {
            self.span.record("otel.status_code", "ERROR");
            self.span.record("rpc.jsonrpc.error_code", outcome.code());
            self.span.record("outcome", outcome.as_str());
        }
    }
}

/// Returns as much of a client's text as is shown.
pub(crate) fn truncate_for_log(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN_BYTES)]
}

/// Tells whether a trace is short enough to be looked at. What it says is checked by who continues it.
fn is_within_limits(trace: &Trace) -> bool {
    let within = |text: &Option<String>, most| text.as_ref().is_none_or(|text| text.len() <= most);
    within(&trace.traceparent, TRACEPARENT_BYTES) && within(&trace.tracestate, TRACESTATE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(meters: &Arc<Meters>) -> RequestGuard {
        RequestGuard::new(meters, MethodName::ProcessRead, None, None, |_, _| {})
    }

    #[test]
    fn a_request_is_counted_once_however_it_ends() {
        let meters = Arc::new(Meters::default());
        let (answered, cut_off) = (begin(&meters), begin(&meters));
        assert_eq!(meters.requests.in_flight.value(), 2);
        answered.finish(Outcome::NotFound);
        drop(cut_off);
        assert_eq!(meters.requests.in_flight.value(), 0);
        let outcomes: Vec<_> = meters
            .requests
            .used()
            .flat_map(|meter| meter.outcomes())
            .collect();
        assert_eq!(outcomes, [(Outcome::NotFound, 1), (Outcome::Cancelled, 1)]);
    }

    #[test]
    fn what_clients_send_is_shown_within_bounds() {
        assert_eq!(truncate_for_log("short"), "short");
        assert_eq!(truncate_for_log(&"\u{e9}".repeat(100)).len(), 128);
        assert_eq!(
            truncate_for_log(&format!("x{}", "\u{e9}".repeat(100))).len(),
            127
        );
        let trace = |length| Trace {
            traceparent: Some("0".repeat(length)),
            tracestate: None,
        };
        assert!(is_within_limits(&trace(55)));
        assert!(!is_within_limits(&trace(129)));
    }
}
