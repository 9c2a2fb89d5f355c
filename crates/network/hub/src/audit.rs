//! The audit log: who asked for what, when, from where, and what came of it. One JSON object a line.
//! Invariant: no secret is ever in it; and nothing is lost without a line that says how much.
//! Not here: what operators debug with (`tracing`), what they graph (`metrics`).

mod event;
mod log;
mod sink;
#[cfg(test)]
mod tests;

pub use event::{Action, Event, Outcome};
pub use log::{Audit, AuditError};
