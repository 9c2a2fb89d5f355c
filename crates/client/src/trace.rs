//! Where the trace context of requests comes from.

use std::{fmt, sync::Arc};

use exec_wire::message::Trace;

/// Tells what a request belongs to. Asked for every call, on the task that makes it.
#[derive(Clone)]
pub struct TraceSource(Arc<dyn Fn() -> Option<Trace> + Send + Sync>);

impl TraceSource {
    /// Asks `source`, which is not to block. `None` sends the request without a trace.
    pub fn new(source: impl Fn() -> Option<Trace> + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// Returns what the request that is being made belongs to.
    pub(crate) fn current(&self) -> Option<Trace> {
        (self.0)()
    }
}

impl fmt::Debug for TraceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceSource").finish_non_exhaustive()
    }
}
