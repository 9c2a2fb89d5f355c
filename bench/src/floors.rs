//! The floors: performance of this machine without a server. Peers of a floor run in their own
//! process, like a server.

pub(crate) mod copy;
pub(crate) mod cores;
pub(crate) mod helper;
pub(crate) mod spawn;
