//! Environments by id, and what each model step may use of them.
//!
//! [`manager`] starts environments and knows which handle is current. [`roots`] resolves the
//! capability roots that a thread selected against one step's snapshot, [`capabilities`] discovers
//! and caches the skills and plugins below them, and [`thread`] holds the metadata that outlives a
//! process. Not here: the traits of an environment (`exec-env`) and the ways to open one.

pub mod capabilities;
#[cfg(test)]
mod fakes;
pub mod manager;
pub mod roots;
pub mod thread;
