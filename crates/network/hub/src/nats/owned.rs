//! How many environments each principal owns: one empty record for each, beside the environment's
//! own, under a name that the broker counts by.
//! Invariant: an entry is older than the record it stands for, so that a removal takes it along and
//! leaves alone what was claimed since. One whose record was never written, because a node died
//! between the two, counts against its principal until that claims the environment after all.

use sha2::{Digest, Sha256};

use super::{
    bucket::{Bucket, Revision, WriteError},
    registry::Full,
};
use crate::{
    principal::PrincipalName,
    store::{ClaimError, EnvironmentId, StoreError},
};

/// The entries.
#[derive(Clone, Debug)]
pub(super) struct Owned {
    bucket: Bucket,
}

impl Owned {
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
