//! Traces that a client began, continued here.

use exec_service::Origin;
use exec_wire::message::Trace;
use opentelemetry::{
    Context,
    propagation::{Extractor, TextMapPropagator},
    trace::TraceContextExt,
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Makes a span the child of the one that a client names, or of another of ours. What does not name one is
/// ignored.
pub(crate) fn continue_trace(span: &Span, origin: Origin<'_>) {
    let parent = match origin {
        Origin::Trace(trace) => {
            TraceContextPropagator::new().extract_with_context(&Context::new(), &Named(trace))
        }
        Origin::Span(parent) => parent.context(),
    };
    if parent.span().span_context().is_valid() {
        // Without a place to send spans to, there is nothing to continue.
        drop(span.set_parent(parent));
    }
}

/// The members of a trace as the headers that they are named after.
struct Named<'a>(&'a Trace);

impl Extractor for Named<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.0.traceparent.as_deref(),
            "tracestate" => self.0.tracestate.as_deref(),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}
