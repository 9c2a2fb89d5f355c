//! Counts pending authorizations per principal. The caller provides the time.
//! Invariant: bounded per principal, so that unused authorizations of one principal do not block
//! others, and in total.

use std::collections::{BTreeSet, HashMap};

use super::{AuthorizeError, Timestamp, TokenHash};
use crate::{limits, principal::PrincipalName};

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn hash(n: usize) -> TokenHash {
        TokenHash::of(&"env".parse().unwrap(), &n.to_string())
    }

    #[test]
    fn limit_per_principal_is_enforced_and_released() {
        let mut waiting = PendingAuthorizations::new(usize::MAX);
        let (alice, bob) = ("alice".parse().unwrap(), "bob".parse().unwrap());
        let (t0, most) = (
            Timestamp::from_seconds(60),
            limits::AUTHORIZATIONS_PER_PRINCIPAL,
        );
        for n in 0..most {
            waiting.add(hash(n), &alice, t0).unwrap();
        }
        let more = waiting.add(hash(most), &alice, t0);
        assert!(matches!(more, Err(AuthorizeError::Limit)));
        waiting.add(hash(most), &bob, t0).unwrap();
        waiting.remove(hash(0));
        waiting.remove(hash(0));
        waiting.add(hash(most + 1), &alice, t0).unwrap();
        let more = waiting.add(hash(most + 2), &alice, t0);
        assert!(matches!(more, Err(AuthorizeError::Limit)));
    }

    #[test]
    fn total_limit_is_enforced_and_expired_ones_are_released() {
        let mut waiting = PendingAuthorizations::new(2);
        let alice = "alice".parse().unwrap();
        let t0 = Timestamp::from_seconds(60);
        let t1 = t0.plus(Duration::from_secs(1));
        waiting.add(hash(0), &alice, t1).unwrap();
        waiting.add(hash(1), &alice, t0).unwrap();
        let more = waiting.add(hash(2), &alice, t1);
        assert!(matches!(more, Err(AuthorizeError::Full)));
        assert_eq!(waiting.expired(t0), Some(hash(1)));
        assert_eq!(waiting.expired(t0), None);
        waiting.add(hash(2), &alice, t1).unwrap();
        assert!(waiting.expired(t1).is_some() && waiting.expired(t1).is_some());
        assert!(waiting.principals.is_empty() && waiting.tokens.is_empty());
    }
}
