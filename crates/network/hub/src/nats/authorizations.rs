//! Harness authorizations that wait for their one use, on whichever node that is.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    bucket::{Bucket, Revision, Shape, WriteError},
    registry::{Contended, Full, json, parse},
};
use crate::store::{Authorization, AuthorizeError, StoreError, Timestamp, TokenHash, Waiting};

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
