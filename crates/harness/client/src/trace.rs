//! Where the trace context of requests comes from.

pub use exec_transport::trace::TraceSource;
