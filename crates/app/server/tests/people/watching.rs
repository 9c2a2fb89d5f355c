//! Those who watch a server: what it counts, what it logs, what it tells a collector, and what it is
//! installed with.

mod behind;
mod collector;
pub(crate) mod http;
mod logs;
mod numbers;
mod papers;
mod spans;
