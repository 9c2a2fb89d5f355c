//! What lives as long as the process: connected executors, and authorizations that wait.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::store::{Authorization, AuthorizeError, EnvironmentId, Presence, Timestamp, TokenHash};

/// How many authorizations may wait at once. Each lives for a minute and holds a public key.
const MAX_AUTHORIZATIONS: usize = 16_384;

/// Presence and authorizations. Bounded: the first by the environments there are, the second by
/// [`MAX_AUTHORIZATIONS`].
#[derive(Debug, Default)]
pub(super) struct Live {
    presences: BTreeMap<EnvironmentId, Presence>,
    authorizations: HashMap<TokenHash, Authorization>,
    /// The same authorizations by their end, so that the dead are found without a search.
    expiries: BTreeSet<(Timestamp, TokenHash)>,
}

impl Live {
    pub(super) fn attach(&mut self, presence: Presence) {
        self.presences
            .insert(presence.environment.clone(), presence);
    }

    pub(super) fn detach(&mut self, presence: &Presence) {
        if self.presences.get(&presence.environment) == Some(presence) {
            self.presences.remove(&presence.environment);
        }
    }

    pub(super) fn forget(&mut self, environment: &EnvironmentId) {
        self.presences.remove(environment);
    }

    pub(super) fn presence(&self, environment: &EnvironmentId) -> Option<&Presence> {
        self.presences.get(environment)
    }

    /// Keeps an authorization. `now` is when it was made: what expired by then makes room.
    pub(super) fn authorize(
        &mut self,
        token: TokenHash,
        authorization: Authorization,
        now: Timestamp,
    ) -> Result<(), AuthorizeError> {
        self.purge(now);
        if self.authorizations.len() >= MAX_AUTHORIZATIONS {
            return Err(AuthorizeError::Full);
        }
        self.expiries.insert((authorization.expires_at, token));
        self.authorizations.insert(token, authorization);
        Ok(())
    }

    pub(super) fn redeem(&mut self, token: TokenHash, now: Timestamp) -> Option<Authorization> {
        let authorization = self.authorizations.remove(&token)?;
        self.expiries.remove(&(authorization.expires_at, token));
        (now < authorization.expires_at).then_some(authorization)
    }

    fn purge(&mut self, now: Timestamp) {
        while let Some((expires_at, token)) = self.expiries.first().copied()
            && expires_at <= now
        {
            self.expiries.pop_first();
            self.authorizations.remove(&token);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use exec_relay::identity::Identity;

    use super::*;

    #[test]
    fn authorizations_are_bounded_and_the_expired_make_room() {
        let mut live = Live::default();
        let (t0, environment) = (Timestamp::from_seconds(1000), "env".parse().unwrap());
        let authorization = Authorization {
            environment,
            registration: "reg".parse().unwrap(),
            harness_key: Identity::generate().public_key().clone(),
            principal: "alice".parse().unwrap(),
            expires_at: t0.plus(Duration::from_secs(60)),
        };
        let hash = |n: usize| TokenHash::of(&authorization.environment, &n.to_string());
        for n in 0..MAX_AUTHORIZATIONS {
            live.authorize(hash(n), authorization.clone(), t0).unwrap();
        }
        let one_more = live.authorize(hash(usize::MAX), authorization.clone(), t0);
        assert!(matches!(one_more, Err(AuthorizeError::Full)));
        assert!(live.redeem(hash(0), t0).is_some());
        assert!(live.redeem(hash(0), t0).is_none());
        assert!(live.redeem(hash(1), authorization.expires_at).is_none());

        live.authorize(
            hash(usize::MAX),
            authorization.clone(),
            authorization.expires_at,
        )
        .unwrap();
        assert_eq!((live.authorizations.len(), live.expiries.len()), (1, 1));
    }
}
