//! Who says whether a harness is welcome.

use std::fmt;

use exec_relay::{frame::StreamId, identity::PublicKey};
use futures_util::future::BoxFuture;

/// Asks the registry about harnesses.
pub trait Validator: Send + Sync {
    /// Tells whether a claim holds. It is dropped when the answer no longer matters, and counts as
    /// [`ValidationOutcome::Refused`] after ten seconds.
    fn validate(&self, claim: Claim) -> BoxFuture<'static, ValidationOutcome>;
}

/// What the registry says about a harness.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValidationOutcome {
    /// It may come in.
    Accepted,
    /// It may not, or nobody could be asked. The harness learns nothing else.
    Refused,
    /// The registry rejects the executor's own credential (401). The harness is told, as no other
    /// attempt of it can succeed.
    ExecutorUnauthenticated,
}

/// What a harness claims in its first message.
#[derive(Clone, Eq, PartialEq)]
pub struct Claim {
    /// The registration under which the executor was reached.
    pub registration_id: String,
    /// The stream that the harness wants. Untrusted text.
    pub stream_id: StreamId,
    /// The key that the harness says it holds.
    pub harness_key: PublicKey,
    /// What the registry gave the harness: a secret for the registry alone.
    pub authorization: String,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("registration_id", &self.registration_id)
            .field("stream_id", &self.stream_id)
            .field("harness_key", &self.harness_key)
            .finish_non_exhaustive()
    }
}
