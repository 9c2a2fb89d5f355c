//! What a server shows of itself: logs, numbers for Prometheus, spans for OpenTelemetry.
//! Invariant: what nobody asked for costs nothing; what is slow to take it never holds up the server.
//! Not here: what is counted and spanned, which is `exec-service`'s business.

mod courier;
mod exposition;
mod lookout;
mod page;
mod telemetry;
mod trace;

pub use self::telemetry::Telemetry;
pub(crate) use self::{
    exposition::{Exhibit, resident_bytes},
    lookout::look_out,
    trace::continue_trace,
};
