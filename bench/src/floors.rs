//! The floors: what this machine does without any server in between.
//! Peers of a floor run in a process of their own, as a server would.

pub(crate) mod copy;
pub(crate) mod cores;
pub(crate) mod echo;
pub(crate) mod exchange;
mod helper;
pub(crate) mod spawn;
