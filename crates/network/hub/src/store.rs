//! The hub's state: owners of environments, current registrations, presence of executors, and
//! pending authorizations.
//! Invariant: all access goes through [`Store`], so that a single process (`RedbStore`) and a
//! cluster (`NatsStore`) give the same guarantees. The rules of registration are pure code in
//! [`EnvironmentRecord`]; stores only persist.
//! Elsewhere: websockets (`rendezvous`), HTTP (`registry`), tokens (`tokens`).

mod authorizations;
mod record;
mod redb;
#[cfg(test)]
mod tests;
mod timestamp;

pub use self::{
    authorizations::{Authorization, AuthorizeError, TokenHash},
    record::{
        ConnectionId, EnvironmentId, EnvironmentRecord, HubIdError, KeyFingerprint, NodeName,
        PresenceRecord, Registration, RegistrationId, SupersededExecutor,
    },
    redb::{RedbStore, StoreOpenError},
    timestamp::Timestamp,
};

#[cfg(test)]
pub(crate) use self::redb::{lose_writer, on_disk};

pub(crate) use self::{authorizations::PendingAuthorizations, record::is_plain_id};

use std::{error::Error, fmt, sync::Arc};

use aws_lc_rs::{error::Unspecified, rand};
use exec_relay::identity::NoisePublicKey;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{limits, principal::PrincipalName};

/// Holds the hub's state. Nodes that share a store form one hub.
///
/// Every call is atomic: concurrent calls are serialized, on any nodes. A call that is dropped
/// midway has either happened or not.
pub trait Store: fmt::Debug + Send + Sync {
    /// Checks whether the store can write, as far as known without writing. Retries a failed store.
    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Returns the key that signs rendezvous URLs. It is created on first use and never changes.
    fn signing_key(&self) -> BoxFuture<'_, Result<SigningKey, StoreError>>;

    /// Makes the principal the owner of an environment, by the rules of
    /// [`EnvironmentRecord::claim`]. No effect if it already is.
    fn claim<'a>(
        &'a self,
        environment: &'a EnvironmentId,
        principal: &'a PrincipalName,
    ) -> BoxFuture<'a, Result<(), ClaimError>>;

    /// Returns the owner of an environment. `None`: the first to claim or register it becomes the
    /// owner.
    fn owner<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<PrincipalName>, StoreError>>;

    /// Makes `new` the current registration of its environment, by the rules of
    /// [`EnvironmentRecord::register`].
    ///
    /// The first principal to register an environment owns it. Previous registrations are
    /// superseded and can no longer be attached.
    fn register(&self, new: NewRegistration) -> BoxFuture<'_, Result<Registration, RegisterError>>;

    /// Returns the current registration. `None`: there never was one, or it was removed.
    fn registration<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<Registration>, StoreError>>;

    /// Returns up to `limit` environments after `after`, ordered by id.
    fn environments<'a>(
        &'a self,
        after: Option<&'a EnvironmentId>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<OwnedEnvironment>, StoreError>>;

    /// Removes the environment and its owner. Returns whether it existed.
    fn remove<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Records that an executor's websocket is connected, replacing any other of its environment.
    fn attach(&self, presence: Presence) -> BoxFuture<'_, Result<(), AttachError>>;

    /// Records that this websocket ended at `now`. No effect if another has replaced it.
    fn detach<'a>(
        &'a self,
        presence: &'a Presence,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Returns where the executor is connected, if it is.
    ///
    /// The presence may belong to a superseded registration until its websocket is closed; the
    /// caller must compare.
    fn presence<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<Presence>, StoreError>>;

    /// Stores an authorization until it is redeemed or expires.
    fn authorize(
        &self,
        token: TokenHash,
        authorization: Authorization,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), AuthorizeError>>;

    /// Redeems an authorization. Of all calls for one token, exactly one gets it.
    ///
    /// Returns `None` if it never existed, was used, or has expired.
    fn redeem(
        &self,
        token: TokenHash,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Authorization>, StoreError>>;

    /// Redeems an invite for a claimant. Of all claimants of an invite, on any nodes, exactly one
    /// gets `true`, and gets it again when it repeats the call.
    fn redeem_invite(&self, claim: InviteClaim) -> BoxFuture<'_, Result<bool, StoreError>>;
}

/// A request to redeem an invite. Contains only hashes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InviteClaim {
    /// Hash of the invite.
    pub invite: [u8; 32],
    /// Hash of the text that identifies the claimant.
    pub claimant: [u8; 32],
    /// Expiry of the invite, after which the record of its use is not needed.
    pub expires_at: Timestamp,
    /// Time of the request.
    pub at: Timestamp,
}

/// An environment with its owner.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OwnedEnvironment {
    /// The environment.
    pub environment: EnvironmentId,
    /// The owner.
    pub owner: PrincipalName,
    /// The current registration. `None`: only direct executors have registered so far.
    pub current: Option<Registration>,
}

/// A registration request.
#[derive(Clone, Debug)]
pub struct NewRegistration {
    /// The environment.
    pub environment: EnvironmentId,
    /// The new id.
    pub id: RegistrationId,
    /// The executor's public keys.
    pub executor_key: NoisePublicKey,
    /// The registering principal.
    pub principal: PrincipalName,
    /// Time of the request.
    pub at: Timestamp,
}

/// A connected executor websocket.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Presence {
    /// The environment.
    pub environment: EnvironmentId,
    /// The registration in the websocket's URL.
    pub registration: RegistrationId,
    /// The node that has the websocket.
    pub node: NodeName,
    /// Id of the websocket.
    pub connection: ConnectionId,
}

/// The key that signs rendezvous URLs. All nodes of a hub share it.
#[derive(Clone, Eq, PartialEq)]
pub struct SigningKey([u8; Self::LEN]);

impl SigningKey {
    /// Key length in bytes, equal to the hash length.
    pub const LEN: usize = 32;

    /// Generates a key.
    ///
    /// # Errors
    /// Returns an error if the host provides no randomness.
    pub fn generate() -> Result<Self, Unspecified> {
        let mut key = [0; Self::LEN];
        rand::fill(&mut key)?;
        Ok(Self(key))
    }

    /// Wraps a stored key. Returns `None` if its length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Returns the key bytes.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

/// Why the store cannot serve at the moment.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Host: the store is unreachable or cannot write. A retry may succeed.
    #[error("store is unavailable")]
    Unavailable(#[source] Arc<dyn Error + Send + Sync>),
    /// Host: a stored record is malformed.
    #[error("store contains a damaged record of {what}")]
    Damaged {
        /// Which record, without its content.
        what: String,
    },
    /// Us: the store is shutting down.
    #[error("store is closed")]
    Closed,
}

impl StoreError {
    /// Wraps an error of the underlying storage.
    pub fn unavailable(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(Arc::from(cause.into()))
    }
}

/// Why a claim failed. The ownership is unchanged in all cases.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Caller: another principal owns the environment.
    #[error("environment belongs to another principal")]
    Foreign,
    /// Caller: the principal has reached its quota of environments.
    #[error(
        "principal has reached its limit of {} environments; remove one first",
        limits::ENVIRONMENTS_PER_PRINCIPAL
    )]
    Limit,
    /// Caller: the hub has reached its limit of environments.
    #[error("hub has reached its limit of environments")]
    Full,
    /// Host: see the source.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a registration failed. The current one is unchanged in all cases.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The principal cannot claim the environment.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// Caller: another executor has replaced this one and still holds the environment. A retry may
    /// succeed.
    #[error("another executor has replaced this one")]
    Conflict,
}

impl From<StoreError> for RegisterError {
    fn from(error: StoreError) -> Self {
        Self::Claim(error.into())
    }
}

/// Why an executor's websocket was not attached.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Peer: the registration is not current, or the environment was removed.
    #[error("registration is not current")]
    Superseded,
    /// Host: see the source.
    #[error(transparent)]
    Store(#[from] StoreError),
}
