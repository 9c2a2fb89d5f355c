//! Those who watch a server: what it counts, what it logs, what it tells a collector, and what it is
//! installed with.

mod executor;
pub(crate) mod http_client;
mod logs;
mod metrics;
mod packaging;
mod span_collector;
mod spans;
