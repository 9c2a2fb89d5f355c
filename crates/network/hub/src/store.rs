//! What the hub remembers: who owns an environment, its current registration, whether its executor
//! is connected, and the authorizations that wait for their one use.
//! Invariant: [`Store`] is the only way in, so that one process (`RedbStore`) and many (`NatsStore`)
//! keep the same promises. Records decide, stores keep: the rules of a registration are pure code in
//! [`Record`].
//! Not here: sockets (`rendezvous`), HTTP (`registry`), where tokens come from (`tokens`).

mod ids;
mod pending_authorizations;
mod record;
mod redb;
mod signing_key;
#[cfg(test)]
mod tests;
mod timestamp;

pub use self::{
    ids::{ConnectionId, EnvironmentId, IdError, NodeName, RegistrationId},
    record::{Attendance, KeyPrint, Record, Registration, Superseded},
    redb::{OpenError, RedbStore},
    signing_key::{SigningKey, TokenHash},
    timestamp::Timestamp,
};

#[cfg(test)]
pub(crate) use self::redb::{lose_writer, on_disk};

pub(crate) use self::pending_authorizations::Waiting;

use std::{error::Error, fmt, sync::Arc};

use exec_relay::identity::PublicKey;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{limits, principal::PrincipalName};

/// Keeps the hub's state. Nodes that share a store are one hub.
///
/// Every call is atomic: of two that race, one happens before the other, on whichever nodes they
/// are made. A call that is dropped midway has happened or not; it is never half done.
pub trait Store: fmt::Debug + Send + Sync {
    /// Whether the store can keep what it is asked to, as far as is known without asking for it. One
    /// that failed is tried again.
    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// The key that signs rendezvous URLs: made on first use, then the same for ever.
    fn signing_key(&self) -> BoxFuture<'_, Result<SigningKey, StoreError>>;

    /// Makes an environment the principal's own, by the rules of
    /// [`Record::claim`](Record::claim). Nothing happens when it is already.
    fn claim<'a>(
        &'a self,
        environment: &'a EnvironmentId,
        principal: &'a PrincipalName,
    ) -> BoxFuture<'a, Result<(), ClaimError>>;

    /// Whose an environment is. `None`: nobody's; the first to claim or register it owns it.
    fn owner<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<PrincipalName>, StoreError>>;

    /// Makes `new` the current registration of its environment, by the rules of
    /// [`Record::register`](Record::register).
    ///
    /// The first principal to register an environment owns it. What was registered before is
    /// superseded: it can no longer be attached.
    fn register(&self, new: NewRegistration) -> BoxFuture<'_, Result<Registration, RegisterError>>;

    /// The current registration. `None`: there never was one, or it was removed.
    fn registration<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<Registration>, StoreError>>;

    /// Up to `limit` environments in the order of their ids, those after `after`.
    fn environments<'a>(
        &'a self,
        after: Option<&'a EnvironmentId>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Owned>, StoreError>>;

    /// Forgets the environment, its owner included. False: there was none.
    fn remove<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Notes that an executor's socket is connected, in place of any other of its environment.
    fn attach(&self, presence: Presence) -> BoxFuture<'_, Result<(), AttachError>>;

    /// Notes that this very socket is gone `now`. Nothing happens when another has taken its place.
    fn detach<'a>(
        &'a self,
        presence: &'a Presence,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Where the executor is connected. `None`: nowhere.
    ///
    /// The presence may be that of a superseded registration for the moment until its socket is
    /// closed; the caller compares.
    fn presence<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<Presence>, StoreError>>;

    /// Keeps an authorization, made `now`, until it is redeemed or expires.
    fn authorize(
        &self,
        token: TokenHash,
        authorization: Authorization,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), AuthorizeError>>;

    /// Takes an authorization out. Of all who ask for one token, one gets it, once.
    ///
    /// `None`: never made, used, or expired at `now`.
    fn redeem(
        &self,
        token: TokenHash,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Authorization>, StoreError>>;
}

/// An environment and whose it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Owned {
    /// The environment.
    pub environment: EnvironmentId,
    /// Its owner.
    pub owner: PrincipalName,
    /// Its current registration. `None`: only direct executors have come so far.
    pub current: Option<Registration>,
}

/// A registration as it is asked for.
#[derive(Clone, Debug)]
pub struct NewRegistration {
    /// The environment.
    pub environment: EnvironmentId,
    /// The id it shall have: a fresh one.
    pub id: RegistrationId,
    /// The executor's static keys.
    pub executor_key: PublicKey,
    /// Who asks.
    pub principal: PrincipalName,
    /// When.
    pub at: Timestamp,
}

/// An executor's websocket, connected somewhere.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Presence {
    /// The environment.
    pub environment: EnvironmentId,
    /// The registration whose URL opened the socket.
    pub registration: RegistrationId,
    /// The node that holds the socket.
    pub node: NodeName,
    /// The socket.
    pub connection: ConnectionId,
}

/// What a harness authorization allows, once, until it expires.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Authorization {
    /// The environment.
    pub environment: EnvironmentId,
    /// The registration that was current.
    pub registration: RegistrationId,
    /// The harness's static keys.
    pub harness_key: PublicKey,
    /// Who asked for it.
    pub principal: PrincipalName,
    /// The first moment at which it is worth nothing.
    pub expires_at: Timestamp,
}

/// Why the store cannot serve at all right now.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Host: the store is unreachable or cannot write. Asking again later may work.
    #[error("the store is unavailable")]
    Unavailable(#[source] Arc<dyn Error + Send + Sync>),
    /// Host: what the store holds is not what the hub wrote.
    #[error("the store holds a damaged record of {what}")]
    Damaged {
        /// Which record, without its content.
        what: String,
    },
    /// We: the store is shutting down.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Wraps what the storage underneath said.
    pub fn unavailable(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(Arc::from(cause.into()))
    }
}

/// Why an environment was not made somebody's. In every case it is whose it was.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Caller: another principal owns the environment.
    #[error("the environment belongs to another principal")]
    Foreign,
    /// Caller: it owns as many environments as one principal may.
    #[error(
        "this principal owns {} environments, which is as many as one may own; remove one first",
        limits::ENVIRONMENTS_PER_PRINCIPAL
    )]
    Limit,
    /// Caller: the hub keeps no more environments.
    #[error("the hub holds as many environments as it can")]
    Full,
    /// Host: see the source.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a registration was not made. In every case the current one stays.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Caller: another principal owns the environment.
    #[error("the environment belongs to another principal")]
    Foreign,
    /// Caller: another executor took this one's place and still holds it. Waiting may help.
    #[error("another executor has taken over this environment")]
    Conflict,
    /// Caller: it owns as many environments as one principal may.
    #[error(
        "this principal owns {} environments, which is as many as one may own; remove one first",
        limits::ENVIRONMENTS_PER_PRINCIPAL
    )]
    Limit,
    /// Caller: the hub keeps no more environments.
    #[error("the hub holds as many environments as it can")]
    Full,
    /// Host: see the source.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<ClaimError> for RegisterError {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Foreign => Self::Foreign,
            ClaimError::Limit => Self::Limit,
            ClaimError::Full => Self::Full,
            ClaimError::Store(error) => Self::Store(error),
        }
    }
}

/// Why an executor's socket was not attached.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Peer: its registration is not the current one, or the environment is gone.
    #[error("the registration is not current")]
    Superseded,
    /// Host: see the source.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why an authorization was not kept.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorizeError {
    /// Caller: too many of its own wait for their use. They expire within a minute.
    #[error("too many harness authorizations of this principal are waiting")]
    Limit,
    /// Host: too many of all principals wait. They expire within a minute.
    #[error("too many harness authorizations are waiting")]
    Full,
    /// Host: see the source.
    #[error(transparent)]
    Store(#[from] StoreError),
}
