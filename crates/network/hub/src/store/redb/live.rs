//! What lives as long as the process: connected executors, and authorizations that wait.

use std::collections::{BTreeMap, HashMap};

use crate::store::{
    Attendance, Authorization, AuthorizeError, EnvironmentId, Presence, Timestamp, TokenHash,
    Waiting,
};

/// How many authorizations may wait at once. Each lives for a minute and holds a public key.
const MAX_AUTHORIZATIONS: usize = 16_384;

/// Presence and authorizations. Bounded: the first by the environments there are, the second by
/// [`Waiting`].
#[derive(Debug)]
pub(super) struct Live {
    /// Since when anything is known.
    started: Timestamp,
    presences: BTreeMap<EnvironmentId, Presence>,
    /// When executors left.
    left: BTreeMap<EnvironmentId, Timestamp>,
    authorizations: HashMap<TokenHash, Authorization>,
    /// The same authorizations, as they are counted.
    waiting: Waiting,
}

impl Live {
    pub(super) fn new(started: Timestamp) -> Self {
        Self {
            started,
            presences: BTreeMap::new(),
            left: BTreeMap::new(),
            authorizations: HashMap::new(),
            waiting: Waiting::new(MAX_AUTHORIZATIONS),
        }
    }

    pub(super) fn attach(&mut self, presence: Presence) {
        self.presences
            .insert(presence.environment.clone(), presence);
    }

    pub(super) fn detach(&mut self, presence: &Presence, now: Timestamp) {
        if self.presences.get(&presence.environment) == Some(presence) {
            self.presences.remove(&presence.environment);
            self.left.insert(presence.environment.clone(), now);
        }
    }

    pub(super) fn forget(&mut self, environment: &EnvironmentId) {
        self.presences.remove(environment);
        self.left.remove(environment);
    }

    pub(super) fn presence(&self, environment: &EnvironmentId) -> Option<&Presence> {
        self.presences.get(environment)
    }

    pub(super) fn attendance(&self, environment: &EnvironmentId) -> Attendance {
        Attendance {
            connected: self.presence(environment).cloned(),
            left_at: self.left.get(environment).copied().unwrap_or(self.started),
        }
    }

    /// Keeps an authorization. `now` is when it was made: what expired by then makes room.
    pub(super) fn authorize(
        &mut self,
        token: TokenHash,
        authorization: Authorization,
        now: Timestamp,
    ) -> Result<(), AuthorizeError> {
        while let Some(expired) = self.waiting.expired(now) {
            self.authorizations.remove(&expired);
        }
        let (principal, expires_at) = (&authorization.principal, authorization.expires_at);
        self.waiting.add(token, principal, expires_at)?;
        self.authorizations.insert(token, authorization);
        Ok(())
    }

    pub(super) fn redeem(&mut self, token: TokenHash, now: Timestamp) -> Option<Authorization> {
        let authorization = self.authorizations.remove(&token)?;
        self.waiting.remove(token);
        (now < authorization.expires_at).then_some(authorization)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use exec_relay::identity::Identity;

    use super::*;

    #[test]
    fn the_expired_make_room_and_used_ones_are_worth_nothing() {
        let (t0, environment) = (Timestamp::from_seconds(1000), "env".parse().unwrap());
        let mut live = Live::new(t0);
        let authorization = Authorization {
            environment,
            registration: "reg".parse().unwrap(),
            harness_key: Identity::generate().public_key().clone(),
            principal: "alice".parse().unwrap(),
            expires_at: t0.plus(Duration::from_secs(60)),
        };
        let hash = |n: usize| TokenHash::of(&authorization.environment, &n.to_string());
        for n in 0..100 {
            live.authorize(hash(n), authorization.clone(), t0).unwrap();
        }
        assert!(live.redeem(hash(0), t0).is_some());
        assert!(live.redeem(hash(0), t0).is_none());
        assert!(live.redeem(hash(1), authorization.expires_at).is_none());
        let later = authorization.expires_at;
        live.authorize(hash(usize::MAX), authorization.clone(), later)
            .unwrap();
        assert_eq!(live.authorizations.len(), 1);
    }

    #[test]
    fn it_takes_many_principals_to_use_up_all_authorizations() {
        let now = Timestamp::from_seconds(1000);
        let mut live = Live::new(now);
        let harness_key = Identity::generate().public_key().clone();
        let mut refused = None;
        for n in 0..=MAX_AUTHORIZATIONS {
            let authorization = Authorization {
                environment: "env".parse().unwrap(),
                registration: "reg".parse().unwrap(),
                harness_key: harness_key.clone(),
                principal: format!("p{}", n / 1024).parse().unwrap(),
                expires_at: now.plus(Duration::from_secs(60)),
            };
            let token = TokenHash::of(&authorization.environment, &n.to_string());
            refused = live
                .authorize(token, authorization, now)
                .err()
                .map(|error| (n, error));
        }
        assert!(matches!(
            refused,
            Some((MAX_AUTHORIZATIONS, AuthorizeError::Full))
        ));
    }
}
