//! The tickets of a harness: how it gets from a registry what it needs to meet an executor.
//!
//! The first connection is patient. One that takes up a session asks once per attempt, because its
//! caller paces whole attempts, and it accepts only the executor that has the session. Not here: the
//! connection itself (`exec-transport`), the pace of attempts (`exec-client`, by `delay`).

mod error;
mod first;
mod tickets;

pub use self::{error::TicketError, tickets::RegistryTickets};
