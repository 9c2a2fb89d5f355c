//! What of a thread outlives the process that runs it: its metadata, its selection, its history.
//!
//! Invariant: what is read and written again says the same, also where it is not understood here.
//! Not here: files. A rollout is text that its owner reads, bounds and writes.

mod meta;
mod rollout;
#[cfg(test)]
mod tests;

pub use self::{
    meta::{SessionMeta, ThreadId, ThreadIdError},
    rollout::{BrokenLine, History, LineFault, ReadRollout, Rollout, RolloutError, RolloutItem},
};
