//! Source of the trace context of requests, including upgrade requests.

use std::{fmt, sync::Arc};

use exec_wire::message::TraceContext;
use http::{HeaderName, HeaderValue};

/// Provides the trace context of a request. Called for every request, on the task that makes it.
#[derive(Clone)]
pub struct TraceSource(Arc<dyn Fn() -> Option<TraceContext> + Send + Sync>);

impl TraceSource {
    /// Creates a source from a function, which must not block. `None` sends the request without a
    /// trace.
    pub fn new(source: impl Fn() -> Option<TraceContext> + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// Returns the trace context of the current request.
    pub fn current(&self) -> Option<TraceContext> {
        (self.0)()
    }

    /// Returns the trace context as HTTP headers. Invalid values are omitted.
    pub fn headers(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
        let (parent, state) = match self.current() {
            Some(trace) => (trace.traceparent, trace.tracestate),
            None => (None, None),
        };
        let named = [(TRACEPARENT, parent), (TRACESTATE, state)];
        named
            .into_iter()
            .filter_map(|(name, value)| Some((name, HeaderValue::try_from(value?).ok()?)))
    }
}

impl fmt::Debug for TraceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceSource").finish_non_exhaustive()
    }
}

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_header_values_are_omitted() {
        let source = TraceSource::new(|| {
            Some(TraceContext {
                traceparent: Some("00-ab-cd-01".to_owned()),
                tracestate: Some("a=b\r\nhost: elsewhere".to_owned()),
            })
        });
        let headers: Vec<_> = source.headers().collect();
        let expected = HeaderValue::from_static("00-ab-cd-01");
        assert_eq!(headers, [(TRACEPARENT, expected)]);
        assert_eq!(TraceSource::new(|| None).headers().count(), 0);
    }
}
