//! Owners, registrations and the signing key, in one bucket that keeps them for ever.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use super::bucket::{Bucket, Revision, Shape, Slot, WriteError};
use crate::{
    limits,
    principal::PrincipalName,
    store::{
        self, Attendance, ClaimError, EnvironmentId, NewRegistration, Record, RegisterError,
        Registration, SigningKey, StoreError,
    },
};

/// The bucket of owners and registrations.
pub(super) const SHAPE: Shape = Shape {
    name: "registry",
    description: "environments: owners and current registrations",
    max_age: None,
    max_bytes: 1024 * 1024 * 1024,
};

/// Owners, registrations and the signing key.
#[derive(Clone, Debug)]
pub(super) struct Registry {
    bucket: Bucket,
    owned: EnvironmentQuota,
}

impl Registry {
    /// Keeps them in `bucket`.
    pub(super) fn new(bucket: Bucket) -> Self {
        Self {
            owned: EnvironmentQuota::new(bucket.clone()),
            bucket,
        }
    }

    /// Whether the broker can be asked.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.bucket.reachable().map(drop)
    }

    /// Makes the bucket again if the broker lost it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(super) async fn restore(&self) -> Result<(), StoreError> {
        self.bucket.restore().await
    }

    /// The key all nodes sign with: the first node's.
    ///
    /// # Errors
    /// [`StoreError`].
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
                Err(WriteError::Full) => return Err(StoreError::unavailable(Full)),
                Err(WriteError::Store(error)) => return Err(error),
            }
        }
        Err(StoreError::unavailable(Contended))
    }

    /// Writes down the key that this node signs with, if the broker lost it: a node that comes later
    /// would make another, and refuse the URLs of all others.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn keep_signing_key(&self, key: &SigningKey) -> Result<(), StoreError> {
        let slot = self.bucket.read(SIGNING_KEY).await?;
        if let Some(bytes) = &slot.value {
            if SigningKey::from_bytes(bytes).as_ref() != Some(key) {
                tracing::error!("this node signs with another key than new nodes: restart it");
            }
            return Ok(());
        }
        let bytes = key.as_bytes().to_vec();
        match self.bucket.write(SIGNING_KEY, bytes, slot.revision).await {
            // Raced: another node was first; the next look compares.
            Ok(_) | Err(WriteError::Raced) => Ok(()),
            Err(WriteError::Full) => Err(StoreError::unavailable(Full)),
            Err(WriteError::Store(error)) => Err(error),
        }
    }

    /// Makes an environment the principal's own, by the rules of [`Record::claim`].
    ///
    /// # Errors
    /// [`ClaimError`].
    pub(super) async fn claim(
        &self,
        environment: &EnvironmentId,
        principal: &PrincipalName,
    ) -> Result<(), ClaimError> {
        let decide = |previous: Option<&Record>| {
            let record = Record::claim(previous, principal)?;
            Ok((record, ()))
        };
        self.change(environment, principal, decide).await
    }

    /// Registers by the rules of [`Record::register`].
    ///
    /// # Errors
    /// [`RegisterError`].
    pub(super) async fn register(
        &self,
        new: NewRegistration,
        seen: &Attendance,
    ) -> Result<Registration, RegisterError> {
        let (environment, principal) = (new.environment.clone(), new.principal.clone());
        let decide = |previous: Option<&Record>| {
            let (record, made) = Record::register(previous, seen, new.clone())?;
            Ok((Some(record), made))
        };
        self.change(&environment, &principal, decide).await
    }

    /// Writes what `decide` makes of a record, and decides again when another node was faster.
    async fn change<T, E: From<ClaimError>>(
        &self,
        environment: &EnvironmentId,
        principal: &PrincipalName,
        decide: impl Fn(Option<&Record>) -> Result<(Option<Record>, T), E>,
    ) -> Result<T, E> {
        let mut entry = None;
        for _ in 0..ATTEMPTS {
            let (previous, seen) = self.read(environment).await.map_err(ClaimError::from)?;
            let decided = match decide(previous.as_ref()) {
                Ok((Some(record), made)) if previous.is_none() && entry.is_none() => {
                    let entered = self.owned.enter(principal, environment).await?;
                    entry = Some(entered);
                    let room = self.check_room(principal).await;
                    room.map(|()| (Some(record), made)).map_err(E::from)
                }
                decided => decided,
            };
            let written = match decided {
                Ok((Some(record), made)) => {
                    let json = json(&record).map_err(ClaimError::from)?;
                    let key = record_key(environment);
                    match self.bucket.write(&key, json, seen).await {
                        Ok(_) => Ok(made),
                        // Another node was faster: decide again.
                        Err(WriteError::Raced) => continue,
                        Err(WriteError::Full) => Err(ClaimError::Full.into()),
                        // It may have been written: what counts it stays.
                        Err(WriteError::Store(error)) => return Err(ClaimError::from(error).into()),
                    }
                }
                Ok((None, made)) => Ok(made),
                Err(error) => Err(error),
            };
            // It may be the principal's all the same, by another request.
            let is_theirs = previous.is_some_and(|record| record.owner == *principal);
            if let (Err(_), Some(entry), false) = (&written, entry, is_theirs) {
                self.owned.leave(principal, environment, entry).await;
            }
            return written;
        }
        Err(ClaimError::from(StoreError::unavailable(Contended)).into())
    }

    /// How many records there are, whatever they are.
    #[cfg(test)]
    pub(super) async fn records(&self) -> Result<u64, StoreError> {
        self.bucket.count().await
    }

    /// Looks whether there is room for the environment that was entered last.
    async fn check_room(&self, principal: &PrincipalName) -> Result<(), ClaimError> {
        if self.owned.count(principal).await? > limits::ENVIRONMENTS_PER_PRINCIPAL {
            return Err(ClaimError::Limit);
        }
        // Each has a record and an entry.
        if self.bucket.count().await? > MAX_ENVIRONMENTS * 2 {
            return Err(ClaimError::Full);
        }
        Ok(())
    }

    /// The current registration.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn registration(
        &self,
        environment: &EnvironmentId,
    ) -> Result<Option<Registration>, StoreError> {
        let record = self.record(environment).await?;
        Ok(record.and_then(|record| record.current))
    }

    /// What is known of an environment.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn record(
        &self,
        environment: &EnvironmentId,
    ) -> Result<Option<Record>, StoreError> {
        Ok(self.read(environment).await?.0)
    }

    async fn read(
        &self,
        environment: &EnvironmentId,
    ) -> Result<(Option<Record>, Revision), StoreError> {
        let slot = self.bucket.read(&record_key(environment)).await?;
        Ok((parse(&slot, "an environment")?, slot.revision))
    }

    /// Environments in the order of their ids.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn environments(
        &self,
        after: Option<&EnvironmentId>,
        limit: usize,
    ) -> Result<Vec<store::Owned>, StoreError> {
        let mut page = Vec::new();
        for key in self.bucket.keys(RECORDS).await? {
            if page.len() >= limit {
                break;
            }
            // Only ids are ever written; what else there may be is not ours.
            let Ok(environment) = key.parse::<EnvironmentId>() else {
                continue;
            };
            if after.is_none_or(|after| environment > *after) {
                let record = self.record(&environment).await?;
                page.extend(record.map(|record| store::Owned {
                    environment,
                    owner: record.owner,
                    current: record.current,
                }));
            }
        }
        Ok(page)
    }

    /// Forgets an environment. False: there was none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn remove(&self, environment: &EnvironmentId) -> Result<bool, StoreError> {
        let key = record_key(environment);
        for _ in 0..ATTEMPTS {
            let (record, seen) = self.read(environment).await?;
            let Some(record) = record else {
                return Ok(false);
            };
            match self.bucket.delete(&key, seen).await {
                Ok(()) => {
                    self.owned.leave(&record.owner, environment, seen).await;
                    self.sweep(environment).await;
                    return Ok(true);
                }
                Err(WriteError::Raced) => {}
                Err(WriteError::Full) => return Err(StoreError::unavailable(Full)),
                Err(WriteError::Store(error)) => return Err(error),
            }
        }
        Err(StoreError::unavailable(Contended))
    }

    /// Takes out the marker that a removal leaves, so that removed environments are not counted.
    async fn sweep(&self, environment: &EnvironmentId) {
        let swept = match self.read(environment).await {
            Ok((None, marker)) => self.bucket.purge(&record_key(environment), marker).await,
            // Somebody has claimed it since.
            Ok((Some(_), _)) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = swept {
            tracing::warn!(%environment, %error, "an environment that is gone is still counted");
        }
    }
}

/// Reads a record as what it should be.
pub(super) fn parse<T: DeserializeOwned>(
    slot: &Slot,
    what: &'static str,
) -> Result<Option<T>, StoreError> {
    let parse = |value: &Bytes| {
        serde_json::from_slice(value).map_err(|_| StoreError::Damaged {
            what: what.to_owned(),
        })
    };
    slot.value.as_ref().map(parse).transpose()
}

/// Writes a record as it is read.
pub(super) fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(StoreError::unavailable)
}

/// Host: the bucket holds all it may.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the NATS bucket is full")]
pub(super) struct Full;

/// Host: other nodes write the same record without a pause.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("too many nodes change one record at once")]
pub(super) struct Contended;

fn record_key(environment: &EnvironmentId) -> String {
    format!("{RECORDS}.{environment}")
}

const SIGNING_KEY: &str = "signing-key";
const RECORDS: &str = "environment";

/// Each lost race means that somebody else won one: this many in a row do not happen by chance.
pub(super) const ATTEMPTS: usize = 16;

/// As many environments as one hub keeps. Their records are about 3 KiB each.
const MAX_ENVIRONMENTS: u64 = 100_000;

/// The entries.
#[derive(Clone, Debug)]
pub(super) struct EnvironmentQuota {
    bucket: Bucket,
}

impl EnvironmentQuota {
    /// Keeps them in `bucket`, among the environments.
    pub(super) fn new(bucket: Bucket) -> Self {
        Self { bucket }
    }

    /// Enters an environment that the principal is about to claim.
    ///
    /// # Errors
    /// [`ClaimError::Full`] and [`ClaimError::Store`].
    pub(super) async fn enter(
        &self,
        principal: &PrincipalName,
        environment: &EnvironmentId,
    ) -> Result<Revision, ClaimError> {
        let key = format!("{}.{environment}", family(principal));
        match self.bucket.overwrite(&key, Vec::new()).await {
            Ok(revision) => Ok(revision),
            Err(WriteError::Full) => Err(ClaimError::Full),
            Err(WriteError::Raced) => Err(StoreError::unavailable(Full).into()),
            Err(WriteError::Store(error)) => Err(error.into()),
        }
    }

    /// Takes an entry out unless it is younger than `seen`. What cannot be taken out is counted.
    pub(super) async fn leave(
        &self,
        principal: &PrincipalName,
        environment: &EnvironmentId,
        seen: Revision,
    ) {
        let key = format!("{}.{environment}", family(principal));
        if let Err(error) = self.bucket.purge(&key, seen).await {
            tracing::warn!(%environment, %error, "an environment that is gone is still counted");
        }
    }

    /// How many the principal has, those it is about to claim included.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(super) async fn count(&self, principal: &PrincipalName) -> Result<usize, StoreError> {
        Ok(self.bucket.keys(&family(principal)).await?.len())
    }
}

/// Names may hold what a subject must not: the first 128 bits of a hash tell them apart as well.
fn family(principal: &PrincipalName) -> String {
    let digest = Sha256::digest(principal.as_str());
    let digits = digest.iter().take(16).map(|byte| format!("{byte:02x}"));
    format!("{FAMILY}.{}", digits.collect::<String>())
}

const FAMILY: &str = "owned";
