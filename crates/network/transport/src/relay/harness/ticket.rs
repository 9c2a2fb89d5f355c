//! The way to an executor.

use std::fmt;

use exec_relay::identity::PublicKey;
use futures_util::future::BoxFuture;

use crate::connect::ConnectError;

/// Gives out tickets, such as by asking a registry.
pub trait Tickets: Send + Sync {
    /// Fetches a fresh ticket. Dropping the future leaves nothing behind.
    fn fetch(&self) -> BoxFuture<'_, Result<Ticket, ConnectError>>;
}

/// All that is needed to reach an executor once. Its parts belong together, and are good for one
/// attempt.
#[derive(Clone, Eq, PartialEq)]
pub struct Ticket {
    /// The relay's websocket, with a secret in it.
    pub url: String,
    /// The environment.
    pub environment_id: String,
    /// The registration that the executor holds.
    pub registration_id: String,
    /// The key that the executor must prove to hold.
    pub executor_key: PublicKey,
    /// What the executor shows to the registry: a secret.
    pub authorization: String,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("environment_id", &self.environment_id)
            .field("registration_id", &self.registration_id)
            .finish_non_exhaustive()
    }
}
