//! What the hub remembers: who owns an environment, its current registration, whether its executor
//! is connected, and the authorizations that wait for their one use.
//! Invariant: [`Store`] is the only way in, so that one process (`RedbStore`) and many (`NatsStore`)
//! keep the same promises. Records decide, stores keep: the rules of a registration are pure code in
//! [`Record`].
//! Not here: sockets (`rendezvous`), HTTP (`registry`), where tokens come from (`tokens`).

mod contract;
mod error;
mod id;
mod record;
mod redb;
mod secret;
#[cfg(test)]
mod tests;
mod time;
mod waiting;

pub use contract::{Authorization, NewRegistration, Owned, Presence, Store};
pub use error::{AttachError, AuthorizeError, ClaimError, RegisterError, StoreError};
pub use id::{ConnectionId, EnvironmentId, IdError, NodeName, RegistrationId};
pub use record::{Attendance, KeyPrint, Record, Registration, Superseded};
pub use redb::{OpenError, RedbStore};
#[cfg(test)]
pub(crate) use redb::{lose_writer, on_disk};
pub use secret::{SigningKey, TokenHash};
pub use time::Timestamp;
pub(crate) use waiting::Waiting;
