//! The hub's state in JetStream key-value buckets, shared by all nodes.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use data_encoding::HEXLOWER;
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;

use super::{
    SubjectNames,
    bucket::{BucketConfig, KvBucket, RecordRevision, WriteError},
    config::NatsConfig,
    connection::{NatsConnection, NatsError},
    nodes::ClusterNodes,
    presences::{self, PresenceRecords},
    registration_bucket::{self, RegistrationBucket, json, parse},
};
use crate::{
    limits,
    principal::PrincipalName,
    store::{
        AttachError, Authorization, AuthorizeError, ClaimError, EnvironmentId, InviteClaim,
        NewRegistration, OwnedEnvironment, PendingAuthorizations, Presence, RegisterError,
        Registration, SigningKey, Store, StoreError, Timestamp, TokenHash,
    },
};

/// The shared store of a cluster.
///
/// Created by [`NatsMesh::join`](crate::nats::NatsMesh::join). Without a connection to the broker
/// every call fails immediately with [`StoreError::Unavailable`], except for the signing key once
/// it is known.
#[derive(Debug)]
pub struct NatsStore {
    /// Start of this node, before which disconnects are unknown.
    started: Timestamp,
    signing_key: OnceCell<SigningKey>,
    registry: RegistrationBucket,
    presences: PresenceRecords,
    authorizations: AuthorizationBucket,
    invites: KvBucket,
}

impl NatsStore {
    /// Opens the buckets, creating missing ones.
    pub(super) async fn open(
        config: &NatsConfig,
        connection: &NatsConnection,
        nodes: &ClusterNodes,
        subjects: &SubjectNames,
    ) -> Result<Self, NatsError> {
        let bucket = |shape: BucketConfig| {
            KvBucket::open(connection, &config.prefix, config.replicas, shape)
        };
        let registry = RegistrationBucket::new(bucket(registration_bucket::BUCKET).await?);
        let presences = PresenceRecords::new(
            bucket(presences::BUCKET).await?,
            registry.clone(),
            nodes.clone(),
            connection.clone(),
            subjects.clone(),
        );
        let authorizations = AuthorizationBucket::new(bucket(BUCKET).await?);
        Ok(Self {
            started: Timestamp::now(),
            signing_key: OnceCell::new(),
            registry,
            presences,
            authorizations,
            invites: bucket(INVITES).await?,
        })
    }

    /// Returns the number of records in the registry bucket.
    #[cfg(test)]
    pub(super) async fn records(&self) -> Result<u64, StoreError> {
        self.registry.records().await
    }

    /// Returns the presence records.
    pub(super) fn presences(&self) -> &PresenceRecords {
        &self.presences
    }

    /// Creates buckets again that the broker lost, and writes the key again.
    pub(super) async fn restore(&self) -> Result<(), StoreError> {
        self.registry.restore().await?;
        if let Some(key) = self.signing_key.get() {
            self.registry.restore_signing_key(key).await?;
        }
        self.authorizations.restore().await?;
        self.invites.restore().await
    }

    /// Marks an invite as redeemed. The conditional write succeeds on one node only.
    async fn mark_invite(&self, claim: InviteClaim) -> Result<bool, StoreError> {
        let key = HEXLOWER.encode(&claim.invite);
        // After a lost race the mark of the other claimant is there.
        for _ in 0..2 {
            let slot = self.invites.read(&key).await?;
            if let Some(mark) = &slot.value {
                return Ok(mark[..] == claim.claimant[..]);
            }
            let mark = claim.claimant.to_vec();
            match self.invites.write(&key, mark, slot.revision).await {
                Ok(_) => return Ok(true),
                Err(WriteError::Raced) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(WriteError::Raced.into())
    }
}

impl Store for NatsStore {
    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(self.registry.check()))
    }

    fn signing_key(&self) -> BoxFuture<'_, Result<SigningKey, StoreError>> {
        Box::pin(async {
            let key = self
                .signing_key
                .get_or_try_init(|| self.registry.signing_key())
                .await?;
            Ok(key.clone())
        })
    }

    fn claim<'a>(
        &'a self,
        environment: &'a EnvironmentId,
        principal: &'a PrincipalName,
    ) -> BoxFuture<'a, Result<(), ClaimError>> {
        Box::pin(self.registry.claim(environment, principal))
    }

    fn owner<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<PrincipalName>, StoreError>> {
        Box::pin(async {
            let record = self.registry.record(environment).await?;
            Ok(record.map(|record| record.owner))
        })
    }

    fn register(&self, new: NewRegistration) -> BoxFuture<'_, Result<Registration, RegisterError>> {
        Box::pin(async {
            let mut presence_record = self
                .presences
                .presence_record(&new.environment, new.at)
                .await?;
            presence_record.left_at = presence_record.left_at.max(self.started);
            self.registry.register(new, &presence_record).await
        })
    }

    fn registration<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<Registration>, StoreError>> {
        Box::pin(self.registry.registration(environment))
    }

    fn environments<'a>(
        &'a self,
        after: Option<&'a EnvironmentId>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<OwnedEnvironment>, StoreError>> {
        Box::pin(self.registry.environments(after, limit))
    }

    fn remove<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let removed = self.registry.remove(environment).await?;
            self.presences.remove(environment).await?;
            Ok(removed)
        })
    }

    fn attach(&self, presence: Presence) -> BoxFuture<'_, Result<(), AttachError>> {
        Box::pin(self.presences.attach(presence))
    }

    fn detach<'a>(
        &'a self,
        presence: &'a Presence,
        // The broker records the time.
        _: Timestamp,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.presences.detach(presence))
    }

    fn presence<'a>(
        &'a self,
        environment: &'a EnvironmentId,
    ) -> BoxFuture<'a, Result<Option<Presence>, StoreError>> {
        Box::pin(async {
            let found = self.presences.find(environment).await?;
            Ok(found.map(|(presence, _)| presence))
        })
    }

    fn authorize(
        &self,
        token: TokenHash,
        authorization: Authorization,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), AuthorizeError>> {
        // The broker drops expired ones by its own clock.
        Box::pin(async move {
            let authorizations = &self.authorizations;
            authorizations.authorize(token, &authorization, now).await
        })
    }

    fn redeem(
        &self,
        token: TokenHash,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Authorization>, StoreError>> {
        Box::pin(self.authorizations.redeem(token, now))
    }

    fn redeem_invite(&self, claim: InviteClaim) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(self.mark_invite(claim))
    }
}

/// Bucket of redeemed invites. A mark outlives its invite, which lives for at most
/// [`limits::INVITE_LIFETIME`].
const INVITES: BucketConfig = BucketConfig {
    name: "invites",
    description: "hashes of redeemed invites",
    max_age: Some(limits::INVITE_LIFETIME.saturating_add(Duration::from_secs(24 * 60 * 60))),
    max_bytes: 16 * 1024 * 1024,
};

/// Bucket of authorizations. They live for a minute; the broker drops them after two, together with
/// the markers of redeemed ones.
pub(super) const BUCKET: BucketConfig = BucketConfig {
    name: "authorizations",
    description: "harness authorizations that wait for their one use",
    max_age: Some(Duration::from_secs(120)),
    max_bytes: 128 * 1024 * 1024,
};

/// Pending authorizations.
#[derive(Clone, Debug)]
pub(super) struct AuthorizationBucket {
    bucket: KvBucket,
    /// Those issued by this node. Ones redeemed on other nodes count here until they expire:
    /// counting for all nodes in the broker would be too expensive per harness.
    pending: Arc<Mutex<PendingAuthorizations>>,
}

impl AuthorizationBucket {
    /// Creates the service on `bucket`.
    pub(super) fn new(bucket: KvBucket) -> Self {
        Self {
            bucket,
            pending: Arc::new(Mutex::new(PendingAuthorizations::new(CAPACITY))),
        }
    }

    /// Creates the bucket again if the broker lost it.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`].
    pub(super) async fn restore(&self) -> Result<(), StoreError> {
        self.bucket.restore().await
    }

    /// Stores an authorization.
    ///
    /// # Errors
    /// Returns [`AuthorizeError`].
    pub(super) async fn authorize(
        &self,
        token: TokenHash,
        authorization: &Authorization,
        now: Timestamp,
    ) -> Result<(), AuthorizeError> {
        {
            let mut pending = self.pending();
            while pending.expired(now).is_some() {}
            pending.add(token, &authorization.principal, authorization.expires_at)?;
        }
        // Tokens are random, so this key was never used.
        let never = RecordRevision::default();
        match self
            .bucket
            .write(&token.to_hex(), json(authorization)?, never)
            .await
        {
            Ok(_) => Ok(()),
            Err(WriteError::Full) => {
                self.pending().remove(token);
                Err(AuthorizeError::Full)
            }
            Err(error) => Err(StoreError::from(error).into()),
        }
    }

    /// Redeems an authorization. The conditional delete succeeds on one node only.
    ///
    /// # Errors
    /// Returns [`StoreError`]; the authorization may be gone then.
    pub(super) async fn redeem(
        &self,
        token: TokenHash,
        now: Timestamp,
    ) -> Result<Option<Authorization>, StoreError> {
        self.pending().remove(token);
        let slot = self.bucket.read(&token.to_hex()).await?;
        let Some(authorization) = parse::<Authorization>(&slot, "an authorization")? else {
            return Ok(None);
        };
        match self.bucket.delete(&token.to_hex(), slot.revision).await {
            Ok(()) => Ok((now < authorization.expires_at).then_some(authorization)),
            Err(WriteError::Raced) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Never held across an `.await`.
    fn pending(&self) -> MutexGuard<'_, PendingAuthorizations> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// More than the bucket can store, at a few hundred bytes each.
const CAPACITY: usize = 65_536;
