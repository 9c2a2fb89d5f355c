//! The task that owns a client's way to its server, in one of four states.
//!
//! - *Connected* ([`connected`]): it reads, writes, matches answers to calls, and hands every event to
//!   its process and every change to its watch.
//! - *Recovering* ([`recovering`]): the connection broke; another one is opened and the session is
//!   resumed on it ([`resume`]). Calls wait.
//! - *Renewing* ([`renewing`]): the session is gone, but processes are held that belong to the server.
//!   Another session is opened, and they are attached again.
//! - *Lost* ([`lost`]): everything of the session has failed. The next call begins another one.
//!
//! Invariant: whoever waits for an answer gets one, or an error that says why there is none.

mod answers;
mod asking;
mod attaching;
mod bodies;
mod connected;
mod connection;
mod lost;
mod messages;
mod past;
mod processes;
mod questions;
mod queue;
mod recovering;
mod renewing;
mod repeat;
mod resume;
mod room;
mod task;
mod waiter;
mod watches;

pub(crate) use self::{
    questions::Watch,
    queue::QUEUE,
    repeat::Repeat,
    task::{Driver, stopped},
    waiter::{Answered, Ask, ConnectionNumber, Opens, Pending, Reply, Request, Waiter},
};
