//! A principal, as one request authenticated it.

use std::fmt;

use super::{Environments, PrincipalName, Role, Roles};
use crate::store::EnvironmentId;

/// Somebody who authenticated, with the rights that what they presented gives them.
#[derive(Clone, Debug)]
pub struct Principal {
    /// Who.
    pub name: PrincipalName,
    /// What kinds of requests they may make.
    pub roles: Roles,
    /// Which environments their token names.
    pub environments: Environments,
    /// What they authenticated with.
    pub evidence: Evidence,
}

impl Principal {
    /// Whether they may make `environment` theirs, nobody owning it yet.
    pub fn may_claim(&self, environment: &EnvironmentId) -> bool {
        self.roles.contains(Role::Executor) && self.is_meant_for(environment)
    }

    /// Whether they may register an executor of an environment that `owner` has.
    pub fn may_register(&self, environment: &EnvironmentId, owner: &PrincipalName) -> bool {
        self.roles.contains(Role::Executor) && self.owns(environment, owner)
    }

    /// Whether they may connect to an environment that `owner` has.
    pub fn may_connect(&self, environment: &EnvironmentId, owner: &PrincipalName) -> bool {
        self.roles.contains(Role::Harness)
            && (self.owns(environment, owner) || self.environments.name(environment))
    }

    /// Whether they might connect to an environment that nobody owns yet, once somebody does.
    pub fn may_await(&self, environment: &EnvironmentId) -> bool {
        self.roles.contains(Role::Harness) && self.is_meant_for(environment)
    }

    /// Whether they see an environment that `owner` has, and may remove it.
    pub fn may_manage(&self, environment: &EnvironmentId, owner: &PrincipalName) -> bool {
        self.roles.contains(Role::Admin) || self.owns(environment, owner)
    }

    /// An owner's token with globs is not good for the owner's other environments.
    fn owns(&self, environment: &EnvironmentId, owner: &PrincipalName) -> bool {
        self.name == *owner && self.is_meant_for(environment)
    }

    /// A token with globs is meant for what they name, any other for everything.
    fn is_meant_for(&self, environment: &EnvironmentId) -> bool {
        self.environments.is_empty() || self.environments.name(environment)
    }
}

/// What a request authenticated with. Names no secret, so that it can be logged.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Evidence {
    /// A token of the token file, by its id.
    Token(String),
    /// A signed JWT.
    Jwt,
    /// A request signed with an access key, by its id.
    AccessKey(String),
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(id) => write!(f, "token:{id}"),
            Self::Jwt => f.write_str("jwt"),
            Self::AccessKey(id) => write!(f, "access-key:{id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(name: &str, roles: &[Role], globs: &[&str]) -> Principal {
        let globs = globs.iter().map(|&glob| glob.to_owned()).collect();
        Principal {
            name: name.parse().unwrap(),
            roles: Roles::new(roles.iter().copied()),
            environments: Environments::new(globs).unwrap(),
            evidence: Evidence::Jwt,
        }
    }

    #[test]
    fn owners_and_named_tokens_connect_and_nobody_else() {
        let (environment, alice) = ("env-1".parse().unwrap(), "alice".parse().unwrap());
        let connects = |name, roles: &[Role], globs: &[&str]| {
            principal(name, roles, globs).may_connect(&environment, &alice)
        };
        assert!(connects("alice", &[Role::Harness], &[]));
        assert!(connects("bob", &[Role::Harness], &["env-*"]));
        assert!(!connects("bob", &[Role::Harness], &[]));
        assert!(!connects("bob", &[Role::Harness], &["other-*"]));
        assert!(!connects("alice", &[Role::Executor, Role::Admin], &["*"]));
        assert!(!connects("alice", &[Role::Harness], &["other-*"]));
    }

    #[test]
    fn a_token_with_globs_claims_only_what_they_name() {
        let claims = |roles: &[Role], globs: &[&str]| {
            principal("alice", roles, globs).may_claim(&"env-1".parse().unwrap())
        };
        assert!(claims(&[Role::Executor], &[]));
        assert!(claims(&[Role::Executor], &["env-?"]));
        assert!(!claims(&[Role::Executor], &["box-*"]));
        assert!(!claims(&[Role::Harness, Role::Admin], &[]));
    }

    #[test]
    fn only_the_owner_registers_and_only_admins_manage_what_others_own() {
        let (environment, alice) = ("env-1".parse().unwrap(), "alice".parse().unwrap());
        let registers = |name, roles: &[Role], globs: &[&str]| {
            principal(name, roles, globs).may_register(&environment, &alice)
        };
        assert!(registers("alice", &[Role::Executor], &[]));
        assert!(registers("alice", &[Role::Executor], &["env-*"]));
        assert!(!registers("alice", &[Role::Executor], &["other-*"]));
        assert!(!registers("bob", &[Role::Executor, Role::Admin], &["*"]));
        assert!(!registers("alice", &[Role::Harness], &[]));
        let manages = |name, roles: &[Role], globs: &[&str]| {
            principal(name, roles, globs).may_manage(&environment, &alice)
        };
        assert!(manages("alice", &[Role::Harness], &[]));
        assert!(!manages("alice", &[Role::Harness], &["other-*"]));
        assert!(manages("root", &[Role::Admin], &[]));
        assert!(!manages("bob", &[Role::Executor, Role::Harness], &["*"]));
    }
}
