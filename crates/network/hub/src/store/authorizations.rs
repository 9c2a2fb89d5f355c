//! Authorizations of harnesses, stored under the hash of their token until redeemed or expired.
//! Invariant: pending ones are bounded per principal, so that unused authorizations of one principal
//! do not block others, and in total.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

use data_encoding::HEXLOWER;
use exec_relay::identity::NoisePublicKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{EnvironmentId, RegistrationId, StoreError, Timestamp};
use crate::{limits, principal::PrincipalName};

/// What a harness authorization permits, once, until it expires.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Authorization {
    /// The environment.
    pub environment: EnvironmentId,
    /// The registration that was current.
    pub registration: RegistrationId,
    /// The harness's public keys.
    pub harness_key: NoisePublicKey,
    /// The principal that requested it.
    pub principal: PrincipalName,
    /// Expiry. Invalid from this time on.
    pub expires_at: Timestamp,
}

/// SHA-256 over environment and token, under which an authorization is stored.
///
/// Lookups need not be constant-time: an attacker chooses tokens, not hashes.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// Hashes a token together with its environment, so that it is invalid in others.
    pub fn of(environment: &EnvironmentId, token: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(environment.as_str());
        // Ids do not contain this byte, so the encoding is unambiguous.
        hash.update([0]);
        hash.update(token);
        Self(hash.finalize().into())
    }

    /// Returns 64 hexadecimal digits, usable as a key in any store.
    pub fn to_hex(self) -> String {
        HEXLOWER.encode(&self.0)
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

/// Pending authorizations, without their content.
#[derive(Debug)]
pub(crate) struct PendingAuthorizations {
    capacity: usize,
    tokens: HashMap<TokenHash, (PrincipalName, Timestamp)>,
    /// The same, ordered by expiry, to find expired ones without a search.
    expiries: BTreeSet<(Timestamp, TokenHash)>,
    /// Number per principal, without zeros.
    principals: HashMap<PrincipalName, usize>,
}

impl PendingAuthorizations {
    /// Creates an empty set of at most `capacity`.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            tokens: HashMap::new(),
            expiries: BTreeSet::new(),
            principals: HashMap::new(),
        }
    }

    /// Adds one. The caller must remove expired ones first, with
    /// [`PendingAuthorizations::expired`].
    ///
    /// # Errors
    /// Returns [`AuthorizeError::Limit`] or [`AuthorizeError::Full`]; then it is not added.
    pub(crate) fn add(
        &mut self,
        token: TokenHash,
        principal: &PrincipalName,
        expires_at: Timestamp,
    ) -> Result<(), AuthorizeError> {
        let own = self.principals.get(principal).copied().unwrap_or_default();
        if own >= limits::AUTHORIZATIONS_PER_PRINCIPAL {
            return Err(AuthorizeError::Limit);
        }
        if self.tokens.len() >= self.capacity {
            return Err(AuthorizeError::Full);
        }
        // Tokens are random; a duplicate is counted once.
        self.remove(token);
        *self.principals.entry(principal.clone()).or_default() += 1;
        self.expiries.insert((expires_at, token));
        self.tokens.insert(token, (principal.clone(), expires_at));
        Ok(())
    }

    /// Removes one. No effect if it is not present.
    pub(crate) fn remove(&mut self, token: TokenHash) {
        let Some((principal, expires_at)) = self.tokens.remove(&token) else {
            return;
        };
        self.expiries.remove(&(expires_at, token));
        if let Some(own) = self.principals.get_mut(&principal) {
            *own -= 1;
            if *own == 0 {
                self.principals.remove(&principal);
            }
        }
    }

    /// Removes and returns one that has expired at `now`, if any.
    pub(crate) fn expired(&mut self, now: Timestamp) -> Option<TokenHash> {
        let (expires_at, token) = self.expiries.first().copied()?;
        if expires_at > now {
            return None;
        }
        self.remove(token);
        Some(token)
    }
}

/// Why an authorization was not stored.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorizeError {
    /// Caller: the principal has too many pending authorizations. They expire within a minute.
    #[error("principal has too many pending harness authorizations")]
    Limit,
    /// Host: all principals together have too many. They expire within a minute.
    #[error("too many pending harness authorizations")]
    Full,
    /// Host: see the source.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn hash(n: usize) -> TokenHash {
        TokenHash::of(&"env".parse().unwrap(), &n.to_string())
    }

    #[test]
    fn limit_per_principal_is_enforced_and_released() {
        let mut pending = PendingAuthorizations::new(usize::MAX);
        let (alice, bob) = ("alice".parse().unwrap(), "bob".parse().unwrap());
        let (t0, most) = (
            Timestamp::from_seconds(60),
            limits::AUTHORIZATIONS_PER_PRINCIPAL,
        );
        for n in 0..most {
            pending.add(hash(n), &alice, t0).unwrap();
        }
        let result = pending.add(hash(most), &alice, t0);
        assert!(matches!(result, Err(AuthorizeError::Limit)));
        pending.add(hash(most), &bob, t0).unwrap();
        pending.remove(hash(0));
        pending.remove(hash(0));
        pending.add(hash(most + 1), &alice, t0).unwrap();
        let result = pending.add(hash(most + 2), &alice, t0);
        assert!(matches!(result, Err(AuthorizeError::Limit)));
    }

    #[test]
    fn total_limit_is_enforced_and_expired_ones_are_released() {
        let mut pending = PendingAuthorizations::new(2);
        let alice = "alice".parse().unwrap();
        let t0 = Timestamp::from_seconds(60);
        let t1 = t0.plus(Duration::from_secs(1));
        pending.add(hash(0), &alice, t1).unwrap();
        pending.add(hash(1), &alice, t0).unwrap();
        let result = pending.add(hash(2), &alice, t1);
        assert!(matches!(result, Err(AuthorizeError::Full)));
        assert_eq!(pending.expired(t0), Some(hash(1)));
        assert_eq!(pending.expired(t0), None);
        pending.add(hash(2), &alice, t1).unwrap();
        assert!(pending.expired(t1).is_some() && pending.expired(t1).is_some());
        assert!(pending.principals.is_empty() && pending.tokens.is_empty());
    }

    #[test]
    fn token_hash_depends_on_the_environment() {
        let environment = |id: &str| id.parse::<EnvironmentId>().unwrap();
        let hash = TokenHash::of(&environment("a"), "t");
        assert_eq!(hash, TokenHash::of(&environment("a"), "t"));
        assert_ne!(hash, TokenHash::of(&environment("b"), "t"));
        assert_ne!(hash, TokenHash::of(&environment("a"), "T"));
        assert_eq!(hash.to_hex().len(), 64);
    }
}
