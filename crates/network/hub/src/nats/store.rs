//! The hub's state in JetStream key-value buckets: the same for all nodes.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;

use super::{
    bucket::{Bucket, Revision, Shape, WriteError},
    config::NatsConfig,
    connection::{Connection, NatsError},
    nodes::Nodes,
    presences::{self, Presences},
    registry::{self, Contended, Full, Registry, json, parse},
    subjects::Subjects,
};
use crate::{
    principal::PrincipalName,
    store::{
        AttachError, Authorization, AuthorizeError, ClaimError, EnvironmentId, NewRegistration,
        Owned, Presence, RegisterError, Registration, SigningKey, Store, StoreError, Timestamp,
        TokenHash, Waiting,
    },
};

/// Keeps the hub's state where all nodes see it.
///
/// Made by [`Mesh::join`](crate::nats::Mesh::join). Without a connection to the broker every call fails
/// at once with [`StoreError::Unavailable`], except for the signing key once it is known.
#[derive(Debug)]
pub struct NatsStore {
    /// Since when this node knows who is connected.
    started: Timestamp,
    signing_key: OnceCell<SigningKey>,
    registry: Registry,
    presences: Presences,
    authorizations: Authorizations,
}

impl NatsStore {
    /// Opens the buckets, and makes those that are missing.
    pub(super) async fn open(
        config: &NatsConfig,
        connection: &Connection,
        nodes: &Nodes,
        subjects: &Subjects,
    ) -> Result<Self, NatsError> {
        let bucket =
            |shape: Shape| Bucket::open(connection, &config.prefix, config.replicas, shape);
        let registry = Registry::new(bucket(registry::SHAPE).await?);
        let presences = Presences::new(
            bucket(presences::SHAPE).await?,
            registry.clone(),
            nodes.clone(),
            connection.clone(),
            subjects.clone(),
        );
        let authorizations = Authorizations::new(bucket(SHAPE).await?);
        Ok(Self {
            started: Timestamp::now(),
            signing_key: OnceCell::new(),
            registry,
            presences,
            authorizations,
        })
    }

    /// How many records the registry has, whatever they are.
    #[cfg(test)]
    pub(super) async fn records(&self) -> Result<u64, StoreError> {
        self.registry.records().await
    }

    /// Where executors are connected.
    pub(super) fn presences(&self) -> &Presences {
        &self.presences
    }

    /// Makes buckets again that the broker lost, and writes down the key again.
    pub(super) async fn restore(&self) -> Result<(), StoreError> {
        self.registry.restore().await?;
        if let Some(key) = self.signing_key.get() {
            self.registry.keep_signing_key(key).await?;
        }
        self.authorizations.restore().await
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
            let mut seen = self.presences.attendance(&new.environment, new.at).await?;
            seen.left_at = seen.left_at.max(self.started);
            self.registry.register(new, &seen).await
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
    ) -> BoxFuture<'a, Result<Vec<Owned>, StoreError>> {
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
        // The broker notes when.
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
        // The broker forgets those that expired by its own clock.
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
}

/// The bucket of authorizations. They live for a minute; the broker forgets them after two, and
/// with them the markers that redeemed ones leave.
pub(super) const SHAPE: Shape = Shape {
    name: "authorizations",
    description: "harness authorizations that wait for their one use",
    max_age: Some(Duration::from_secs(120)),
    max_bytes: 128 * 1024 * 1024,
};

/// Authorizations that wait for their one use.
#[derive(Clone, Debug)]
pub(super) struct Authorizations {
    bucket: Bucket,
    /// Those that this node made. What is redeemed on another counts here until it expires: the
    /// broker could count for all nodes, but not cheaply enough for each harness that comes.
    waiting: Arc<Mutex<Waiting>>,
}

impl Authorizations {
    /// Keeps them in `bucket`.
    pub(super) fn new(bucket: Bucket) -> Self {
        Self {
            bucket,
            waiting: Arc::new(Mutex::new(Waiting::new(CAPACITY))),
        }
    }

    /// Makes the bucket again if the broker lost it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(super) async fn restore(&self) -> Result<(), StoreError> {
        self.bucket.restore().await
    }

    /// Keeps one.
    ///
    /// # Errors
    /// [`AuthorizeError`].
    pub(super) async fn authorize(
        &self,
        token: TokenHash,
        authorization: &Authorization,
        now: Timestamp,
    ) -> Result<(), AuthorizeError> {
        {
            let mut waiting = self.waiting();
            while waiting.expired(now).is_some() {}
            waiting.add(token, &authorization.principal, authorization.expires_at)?;
        }
        // Tokens are random: there never was one of this name.
        let never = Revision::default();
        match self
            .bucket
            .write(&token.to_hex(), json(authorization)?, never)
            .await
        {
            Ok(_) => Ok(()),
            Err(WriteError::Full) => {
                self.waiting().remove(token);
                Err(AuthorizeError::Full)
            }
            Err(WriteError::Raced) => Err(StoreError::unavailable(Contended).into()),
            Err(WriteError::Store(error)) => Err(error.into()),
        }
    }

    /// Takes one out. The delete names the state that was read, so of all nodes one succeeds.
    ///
    /// # Errors
    /// [`StoreError`]; the authorization may be gone then.
    pub(super) async fn redeem(
        &self,
        token: TokenHash,
        now: Timestamp,
    ) -> Result<Option<Authorization>, StoreError> {
        self.waiting().remove(token);
        let slot = self.bucket.read(&token.to_hex()).await?;
        let Some(authorization) = parse::<Authorization>(&slot, "an authorization")? else {
            return Ok(None);
        };
        match self.bucket.delete(&token.to_hex(), slot.revision).await {
            Ok(()) => Ok((now < authorization.expires_at).then_some(authorization)),
            Err(WriteError::Raced) => Ok(None),
            Err(WriteError::Full) => Err(StoreError::unavailable(Full)),
            Err(WriteError::Store(error)) => Err(error),
        }
    }

    /// Never held across a wait.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// More than the bucket holds, at some hundred bytes each.
const CAPACITY: usize = 65_536;
