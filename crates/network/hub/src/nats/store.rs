//! The hub's state in JetStream key-value buckets: the same for all nodes.

use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;

use super::{
    authorizations::{self, Authorizations},
    bucket::{Bucket, Shape},
    config::NatsConfig,
    connection::{Connection, NatsError},
    nodes::Nodes,
    presences::{self, Presences},
    registry::{self, Registry},
    subjects::Subjects,
};
use crate::{
    principal::PrincipalName,
    store::{
        AttachError, Authorization, AuthorizeError, ClaimError, EnvironmentId, NewRegistration,
        Owned, Presence, RegisterError, Registration, SigningKey, Store, StoreError, Timestamp,
        TokenHash,
    },
};

/// Keeps the hub's state where all nodes see it.
///
/// Made by [`Mesh::join`](super::Mesh::join). Without a connection to the broker every call fails
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
        let authorizations = Authorizations::new(bucket(authorizations::SHAPE).await?);
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
