//! Carries the frames of one circuit between two nodes: one task at each end.
//!
//! A bridge joins the local end of a circuit with a pair of subjects. Invariant: frames arrive
//! unchanged and in order, or the circuit ends at both ends; nothing is lost silently. Memory per
//! circuit is bounded by its window.

mod inbound;
mod outbound;
mod task;

pub(super) use self::task::{Bridge, Opening};
