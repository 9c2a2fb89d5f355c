//! Owners, registrations and the signing key, in a bucket without expiry.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use super::bucket::{BucketConfig, KvBucket, KvRecord, RecordRevision, WriteError};
use crate::{
    limits,
    principal::PrincipalName,
    store::{
        self, ClaimError, EnvironmentId, EnvironmentRecord, NewRegistration, PresenceRecord,
        RegisterError, Registration, SigningKey, StoreError,
    },
};

/// Bucket of owners and registrations.
pub(super) const BUCKET: BucketConfig = BucketConfig {
    name: "registry",
    description: "environments: owners and current registrations",
    max_age: None,
    max_bytes: 1024 * 1024 * 1024,
};

/// Owners, registrations and the signing key.
#[derive(Clone, Debug)]
pub(super) struct RegistrationBucket {
    bucket: KvBucket,
}

impl RegistrationBucket {
    /// Creates the service on `bucket`.
    pub(super) fn new(bucket: KvBucket) -> Self {
        Self { bucket }
    }

    /// Checks whether the broker is connected.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`].
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.bucket.reachable().map(drop)
    }

    /// Creates the bucket again if the broker lost it.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`].
    pub(super) async fn restore(&self) -> Result<(), StoreError> {
        self.bucket.restore().await
    }

    /// Returns the key shared by all nodes, created by the first.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    pub(super) async fn signing_key(&self) -> Result<SigningKey, StoreError> {
        for _ in 0..ATTEMPTS {
            let slot = self.bucket.read(SIGNING_KEY).await?;
            if let Some(bytes) = &slot.value {
                let damaged = || StoreError::Damaged {
                    what: "the signing key".to_owned(),
                };
                return SigningKey::from_bytes(bytes).ok_or_else(damaged);
            }
            let key = SigningKey::generate().map_err(StoreError::unavailable)?;
            let bytes = key.as_bytes().to_vec();
            match self.bucket.write(SIGNING_KEY, bytes, slot.revision).await {
                Ok(_) => return Ok(key),
                Err(WriteError::Raced) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(WriteError::Raced.into())
    }

    /// Writes this node's key again if the broker lost it: otherwise a new node would create
    /// another one and reject the URLs of all others.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    pub(super) async fn restore_signing_key(&self, key: &SigningKey) -> Result<(), StoreError> {
        let slot = self.bucket.read(SIGNING_KEY).await?;
        if let Some(bytes) = &slot.value {
            if SigningKey::from_bytes(bytes).as_ref() != Some(key) {
                tracing::error!("this node signs with another key than new nodes; restart it");
            }
            return Ok(());
        }
        let bytes = key.as_bytes().to_vec();
        match self.bucket.write(SIGNING_KEY, bytes, slot.revision).await {
            // Raced: another node was first; the next check compares.
            Ok(_) | Err(WriteError::Raced) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the principal the owner, by the rules of [`EnvironmentRecord::claim`].
    ///
    /// # Errors
    /// Returns [`ClaimError`].
    pub(super) async fn claim(
        &self,
        environment: &EnvironmentId,
        principal: &PrincipalName,
    ) -> Result<(), ClaimError> {
        let decide = |previous: Option<&EnvironmentRecord>| {
            let record = EnvironmentRecord::claim(previous, principal)?;
            Ok((record, ()))
        };
        self.change(environment, principal, decide).await
    }

    /// Registers by the rules of [`EnvironmentRecord::register`].
    ///
    /// # Errors
    /// Returns [`RegisterError`].
    pub(super) async fn register(
        &self,
        new: NewRegistration,
        presence: &PresenceRecord,
    ) -> Result<Registration, RegisterError> {
        let (environment, principal) = (new.environment.clone(), new.principal.clone());
        let decide = |previous: Option<&EnvironmentRecord>| {
            let (record, registration) =
                EnvironmentRecord::register(previous, presence, new.clone())?;
            Ok((Some(record), registration))
        };
        self.change(&environment, &principal, decide).await
    }

    /// Writes what `decide` returns for a record, and retries when another node was faster.
    async fn change<T, E: From<ClaimError>>(
        &self,
        environment: &EnvironmentId,
        principal: &PrincipalName,
        decide: impl Fn(Option<&EnvironmentRecord>) -> Result<(Option<EnvironmentRecord>, T), E>,
    ) -> Result<T, E> {
        let mut entry = None;
        for _ in 0..ATTEMPTS {
            let (previous, revision) = self.read(environment).await.map_err(ClaimError::from)?;
            let decision = match decide(previous.as_ref()) {
                Ok((Some(record), value)) if previous.is_none() && entry.is_none() => {
                    let entered = self.reserve_quota(principal, environment).await?;
                    entry = Some(entered);
                    let within_limits = self.check_limits(principal).await;
                    within_limits
                        .map(|()| (Some(record), value))
                        .map_err(E::from)
                }
                decision => decision,
            };
            let written = match decision {
                Ok((Some(record), value)) => {
                    let json = json(&record).map_err(ClaimError::from)?;
                    let key = record_key(environment);
                    match self.bucket.write(&key, json, revision).await {
                        Ok(_) => Ok(value),
                        // Another node was faster: decide again.
                        Err(WriteError::Raced) => continue,
                        Err(WriteError::Full) => Err(ClaimError::Full.into()),
                        // It may have been written, so the quota entry stays.
                        Err(WriteError::Store(error)) => return Err(ClaimError::from(error).into()),
                    }
                }
                Ok((None, value)) => Ok(value),
                Err(error) => Err(error),
            };
            // Another request of the same principal may have succeeded.
            let is_theirs = previous.is_some_and(|record| record.owner == *principal);
            if let (Err(_), Some(entry), false) = (&written, entry, is_theirs) {
                self.release_quota(principal, environment, entry).await;
            }
            return written;
        }
        Err(ClaimError::from(StoreError::from(WriteError::Raced)).into())
    }

    /// Returns the number of records of any kind.
    #[cfg(test)]
    pub(super) async fn records(&self) -> Result<u64, StoreError> {
        self.bucket.count().await
    }

    /// Checks the limits after the quota entry was added.
    async fn check_limits(&self, principal: &PrincipalName) -> Result<(), ClaimError> {
        if self.count_owned(principal).await? > limits::ENVIRONMENTS_PER_PRINCIPAL {
            return Err(ClaimError::Limit);
        }
        // Each environment has a record and a quota entry.
        if self.bucket.count().await? > MAX_ENVIRONMENTS * 2 {
            return Err(ClaimError::Full);
        }
        Ok(())
    }

    /// Returns the current registration.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    pub(super) async fn registration(
        &self,
        environment: &EnvironmentId,
    ) -> Result<Option<Registration>, StoreError> {
        let record = self.record(environment).await?;
        Ok(record.and_then(|record| record.current))
    }

    /// Returns the record of an environment.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    pub(super) async fn record(
        &self,
        environment: &EnvironmentId,
    ) -> Result<Option<EnvironmentRecord>, StoreError> {
        Ok(self.read(environment).await?.0)
    }

    async fn read(
        &self,
        environment: &EnvironmentId,
    ) -> Result<(Option<EnvironmentRecord>, RecordRevision), StoreError> {
        let slot = self.bucket.read(&record_key(environment)).await?;
        Ok((parse(&slot, "an environment")?, slot.revision))
    }

    /// Returns environments ordered by id.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    pub(super) async fn environments(
        &self,
        after: Option<&EnvironmentId>,
        limit: usize,
    ) -> Result<Vec<store::OwnedEnvironment>, StoreError> {
        let mut page = Vec::new();
        for key in self.bucket.keys(RECORDS).await? {
            if page.len() >= limit {
                break;
            }
            // Only ids are written here; ignore anything else.
            let Ok(environment) = key.parse::<EnvironmentId>() else {
                continue;
            };
            if after.is_none_or(|after| environment > *after) {
                let record = self.record(&environment).await?;
                page.extend(record.map(|record| store::OwnedEnvironment {
                    environment,
                    owner: record.owner,
                    current: record.current,
                }));
            }
        }
        Ok(page)
    }

    /// Removes an environment. Returns whether it existed.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    pub(super) async fn remove(&self, environment: &EnvironmentId) -> Result<bool, StoreError> {
        let key = record_key(environment);
        for _ in 0..ATTEMPTS {
            let (record, revision) = self.read(environment).await?;
            let Some(record) = record else {
                return Ok(false);
            };
            match self.bucket.delete(&key, revision).await {
                Ok(()) => {
                    self.release_quota(&record.owner, environment, revision)
                        .await;
                    self.sweep(environment).await;
                    return Ok(true);
                }
                Err(WriteError::Raced) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(WriteError::Raced.into())
    }

    /// Removes the marker of a deleted record, so that it does not count against the limit.
    async fn sweep(&self, environment: &EnvironmentId) {
        let swept = match self.read(environment).await {
            Ok((None, marker)) => self.bucket.purge(&record_key(environment), marker).await,
            // It was claimed again meanwhile.
            Ok((Some(_), _)) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = swept {
            tracing::warn!(%environment, %error, "failed to release the quota of a removed environment");
        }
    }
}

/// Deserializes a record.
pub(super) fn parse<T: DeserializeOwned>(
    slot: &KvRecord,
    what: &'static str,
) -> Result<Option<T>, StoreError> {
    let parse = |value: &Bytes| {
        serde_json::from_slice(value).map_err(|_| StoreError::Damaged {
            what: what.to_owned(),
        })
    };
    slot.value.as_ref().map(parse).transpose()
}

/// Serializes a record.
pub(super) fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(StoreError::unavailable)
}

fn record_key(environment: &EnvironmentId) -> String {
    format!("{RECORDS}.{environment}")
}

const SIGNING_KEY: &str = "signing-key";
const RECORDS: &str = "environment";

/// Each lost race means that another node made progress: this many in a row do not happen by
/// chance.
pub(super) const ATTEMPTS: usize = 16;

/// Maximum number of environments. Their records take about 3 KiB each.
const MAX_ENVIRONMENTS: u64 = 100_000;

/// Quota of environments per principal: one entry per owned environment.
impl RegistrationBucket {
    /// Adds an entry for an environment that the principal is about to claim.
    ///
    /// # Errors
    /// Returns [`ClaimError::Full`] or [`ClaimError::Store`].
    async fn reserve_quota(
        &self,
        principal: &PrincipalName,
        environment: &EnvironmentId,
    ) -> Result<RecordRevision, ClaimError> {
        let key = format!("{}.{environment}", family(principal));
        match self.bucket.overwrite(&key, Vec::new()).await {
            Ok(revision) => Ok(revision),
            Err(WriteError::Full) => Err(ClaimError::Full),
            Err(error) => Err(StoreError::from(error).into()),
        }
    }

    /// Removes an entry unless it is newer than `revision`. On failure it keeps counting.
    async fn release_quota(
        &self,
        principal: &PrincipalName,
        environment: &EnvironmentId,
        revision: RecordRevision,
    ) {
        let key = format!("{}.{environment}", family(principal));
        if let Err(error) = self.bucket.purge(&key, revision).await {
            tracing::warn!(%environment, %error, "failed to release the quota of a removed environment");
        }
    }

    /// Returns the principal's number of environments, including pending claims.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`].
    async fn count_owned(&self, principal: &PrincipalName) -> Result<usize, StoreError> {
        Ok(self.bucket.keys(&family(principal)).await?.len())
    }
}

/// Principal names may contain characters not allowed in subjects, so the first 128 bits of their
/// hash are used.
fn family(principal: &PrincipalName) -> String {
    let digest = Sha256::digest(principal.as_str());
    format!("{FAMILY}.{}", HEXLOWER.encode(&digest[..16]))
}

const FAMILY: &str = "owned";
