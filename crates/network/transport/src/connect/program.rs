//! A server that is started for one link, and ends with it.
//!
//! Its standard input and output are the link; what it says on standard error is logged. It leads a
//! process group of its own, which is ended when the link is dropped: SIGTERM, then SIGKILL for who
//! is still there. One task keeps the child ([`keeper`]); reader and writer of the link hold it
//! ([`link`]), and report how it ended.
//! Invariant: the group is never signalled after its leader was reaped, so that nobody else is hit.

mod exit;
mod group;
mod keeper;
mod link;
mod said;
mod start;

pub use self::{exit::Exit, start::Program};
