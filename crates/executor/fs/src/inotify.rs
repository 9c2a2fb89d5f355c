//! The kernel's word on what changes in directories: one instance and one thread for everybody.
//!
//! A user may have no more than 128 instances by default, and every connection may watch, so all
//! watches share one. A [`Task`] holds the directories it wants to hear of; a directory that several
//! hold is watched once. The thread lives from the first task to the last; tasks live on it alone
//! and need no locks.
//!
//! Invariant: an event of a held directory reaches every holder, or all tasks are told of an
//! overflow. The queue is the kernel's and bounded, so nobody who is slow costs memory here.
//! Not here: what events mean (`watch`, `missing`).

mod door;
mod event;
mod hub;
mod instance;
mod task;

pub(crate) use door::{Subscription, subscribe};
pub(crate) use event::{Cookie, Descriptor, Event};
pub(crate) use instance::Watches;
pub(crate) use task::Task;
#[cfg(test)]
pub(crate) use {
    event::{buffer, read},
    instance::{Instance, TaskId},
};
