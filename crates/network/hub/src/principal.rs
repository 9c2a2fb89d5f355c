//! Principals and their rights.
//! Invariant: a [`Principal`] exists only for an authenticated request, and every permission check
//! goes through it.
//! Elsewhere: authentication (`tokens`), ownership of environments (`store`).

use std::{fmt, str::FromStr, sync::Arc};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::store::EnvironmentId;

/// An authenticated caller with the rights of its credentials.
#[derive(Clone, Debug)]
pub struct Principal {
    /// The name.
    pub name: PrincipalName,
    /// Permitted kinds of requests.
    pub roles: RoleSet,
    /// Environments that the token is restricted to.
    pub environments: EnvironmentGlobs,
    /// What the caller authenticated with.
    pub evidence: AuthEvidence,
}

impl Principal {
    /// Returns whether the principal may claim an environment without owner.
    pub fn may_claim(&self, environment: &EnvironmentId) -> bool {
        self.roles.contains(Role::Executor) && self.covers(environment)
    }

    /// Returns whether the principal may register an executor of `owner`'s environment.
    pub fn may_register(&self, environment: &EnvironmentId, owner: &PrincipalName) -> bool {
        self.roles.contains(Role::Executor) && self.owns(environment, owner)
    }

    /// Returns whether the principal may connect to `owner`'s environment.
    pub fn may_connect(&self, environment: &EnvironmentId, owner: &PrincipalName) -> bool {
        self.roles.contains(Role::Harness)
            && (self.owns(environment, owner) || self.environments.matches(environment))
    }

    /// Returns whether the principal could connect to an environment that has no owner yet.
    pub fn may_wait_for(&self, environment: &EnvironmentId) -> bool {
        self.roles.contains(Role::Harness) && self.covers(environment)
    }

    /// Returns whether the principal may see and remove `owner`'s environment.
    pub fn may_manage(&self, environment: &EnvironmentId, owner: &PrincipalName) -> bool {
        self.roles.contains(Role::Admin) || self.owns(environment, owner)
    }

    /// A token with globs is not valid for the owner's other environments.
    fn owns(&self, environment: &EnvironmentId, owner: &PrincipalName) -> bool {
        self.name == *owner && self.covers(environment)
    }

    /// A token with globs is valid for matching environments, any other token for all.
    fn covers(&self, environment: &EnvironmentId) -> bool {
        self.environments.is_empty() || self.environments.matches(environment)
    }
}

/// What a request authenticated with. Contains no secret, so it can be logged.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum AuthEvidence {
    /// The id of a token in the token file.
    Token(String),
    /// A signed JWT.
    Jwt,
    /// The id of the access key that signed the request.
    AccessKey(String),
}

impl fmt::Display for AuthEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(id) => write!(f, "token:{id}"),
            Self::Jwt => f.write_str("jwt"),
            Self::AccessKey(id) => write!(f, "access-key:{id}"),
        }
    }
}

/// Name of a principal, chosen by the operator: `alice`, `ci@example.org`.
///
/// Printable ASCII without whitespace, at most [`PrincipalName::MAX_BYTES`] long, because it
/// appears in files, logs and stores.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct PrincipalName(Arc<str>);

impl PrincipalName {
    /// Longest name.
    pub const MAX_BYTES: usize = 128;

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PrincipalName {
    type Err = PrincipalNameError;

    fn from_str(text: &str) -> Result<Self, PrincipalNameError> {
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > Self::MAX_BYTES || !printable {
            return Err(PrincipalNameError);
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrincipalName({})", self.0)
    }
}

impl<'de> Deserialize<'de> for PrincipalName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// Caller: the text is not a valid principal name.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "expected 1 to {} printable ASCII characters without blanks",
    PrincipalName::MAX_BYTES
)]
pub struct PrincipalNameError;

/// A kind of request that a principal may make.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Registers environments and validates harnesses.
    Executor,
    /// Connects to environments.
    Harness,
    /// Lists and removes every environment.
    Admin,
}

impl Role {
    /// Returns the name used in files and tokens.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Executor => "executor",
            Self::Harness => "harness",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        [Self::Executor, Self::Harness, Self::Admin]
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or(RoleError)
    }
}

/// Caller: the text is not a role.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected `executor`, `harness` or `admin`")]
pub struct RoleError;

/// A set of roles.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct RoleSet(Vec<Role>);

impl RoleSet {
    /// Creates a set from roles in any order.
    pub fn new(roles: impl IntoIterator<Item = Role>) -> Self {
        let mut roles: Vec<_> = roles.into_iter().collect();
        roles.sort_unstable();
        roles.dedup();
        Self(roles)
    }

    /// Returns whether the set contains `role`.
    pub fn contains(&self, role: Role) -> bool {
        self.0.contains(&role)
    }

    /// Returns the roles in order.
    pub fn iter(&self) -> impl Iterator<Item = Role> + '_ {
        self.0.iter().copied()
    }
}

impl Default for RoleSet {
    /// The roles to run an executor and to work with it.
    fn default() -> Self {
        Self(vec![Role::Executor, Role::Harness])
    }
}

/// The environment globs of a token, such as `build-*`. An empty list matches nothing.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentGlobs {
    globs: Vec<String>,
    set: Option<GlobSet>,
}

impl EnvironmentGlobs {
    /// Longest glob and maximum number per token: more than any hand-written list.
    pub const MAX_GLOB_BYTES: usize = 256;
    /// See [`EnvironmentGlobs::MAX_GLOB_BYTES`].
    pub const MAX_GLOBS: usize = 64;

    /// Parses the globs.
    ///
    /// # Errors
    /// Returns an error if there are too many, or one is too long or invalid.
    pub fn new(globs: Vec<String>) -> Result<Self, GlobError> {
        if globs.len() > Self::MAX_GLOBS {
            return Err(GlobError::TooMany);
        }
        if globs.is_empty() {
            return Ok(Self::default());
        }
        let mut set = GlobSetBuilder::new();
        for (index, glob) in globs.iter().enumerate() {
            if glob.is_empty() || glob.len() > Self::MAX_GLOB_BYTES {
                return Err(GlobError::Length { index });
            }
            let parsed = GlobBuilder::new(glob)
                .build()
                .map_err(|source| GlobError::Syntax { index, source })?;
            set.add(parsed);
        }
        let set = set.build().map_err(GlobError::TooComplex)?;
        Ok(Self {
            globs,
            set: Some(set),
        })
    }

    /// Returns whether one of the globs matches.
    pub fn matches(&self, environment: &EnvironmentId) -> bool {
        let matches = |set: &GlobSet| set.is_match(environment.as_str());
        self.set.as_ref().is_some_and(matches)
    }

    /// Returns whether there are no globs.
    pub fn is_empty(&self) -> bool {
        self.globs.is_empty()
    }

    /// Returns the globs as given.
    pub fn globs(&self) -> &[String] {
        &self.globs
    }
}

/// Caller: the globs are invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GlobError {
    /// Caller: there are too many.
    #[error("more than {} environment globs", EnvironmentGlobs::MAX_GLOBS)]
    TooMany,
    /// Caller: a glob is empty or too long.
    #[error(
        "environment glob {index} must have 1 to {} bytes",
        EnvironmentGlobs::MAX_GLOB_BYTES
    )]
    Length {
        /// Index of the glob, from 0.
        index: usize,
    },
    /// Caller: the syntax is invalid.
    #[error("environment glob {index} is invalid")]
    Syntax {
        /// Index of the glob, from 0.
        index: usize,
        /// The syntax error.
        source: globset::Error,
    },
    /// Caller: the globs are too complex together.
    #[error("the environment globs are too complex")]
    TooComplex(#[source] globset::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(name: &str, roles: &[Role], globs: &[&str]) -> Principal {
        let globs = globs.iter().map(|&glob| glob.to_owned()).collect();
        Principal {
            name: name.parse().unwrap(),
            roles: RoleSet::new(roles.iter().copied()),
            environments: EnvironmentGlobs::new(globs).unwrap(),
            evidence: AuthEvidence::Jwt,
        }
    }

    #[test]
    fn only_owners_and_matching_tokens_may_connect() {
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
    fn token_with_globs_claims_only_matching_environments() {
        let claims = |roles: &[Role], globs: &[&str]| {
            principal("alice", roles, globs).may_claim(&"env-1".parse().unwrap())
        };
        assert!(claims(&[Role::Executor], &[]));
        assert!(claims(&[Role::Executor], &["env-?"]));
        assert!(!claims(&[Role::Executor], &["box-*"]));
        assert!(!claims(&[Role::Harness, Role::Admin], &[]));
    }

    #[test]
    fn only_the_owner_registers_and_only_admins_manage_other_environments() {
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

    #[test]
    fn names_are_printable_and_bounded() {
        let longest = "n".repeat(PrincipalName::MAX_BYTES);
        for good in ["alice", "ci@example.org", "a/b:c", longest.as_str()] {
            assert_eq!(good.parse::<PrincipalName>().unwrap().as_str(), good);
        }
        let too_long = "n".repeat(PrincipalName::MAX_BYTES + 1);
        for bad in ["", " ", "a b", "a\n", "\u{1b}[0m", "é", too_long.as_str()] {
            assert_eq!(
                bad.parse::<PrincipalName>(),
                Err(PrincipalNameError),
                "{bad:?}"
            );
        }
    }

    fn environments(globs: &[&str]) -> Result<EnvironmentGlobs, GlobError> {
        EnvironmentGlobs::new(globs.iter().map(|&glob| glob.to_owned()).collect())
    }

    #[test]
    fn globs_match_whole_ids() {
        let build = environments(&["build-*", "box_{1,2}"]).unwrap();
        let names = |id: &str| build.matches(&id.parse().unwrap());
        assert!(names("build-7") && names("build-") && names("box_2"));
        assert!(!names("build") && !names("xbuild-7") && !names("box_3") && !names("Build-7"));
    }

    #[test]
    fn empty_globs_match_nothing() {
        assert!(!environments(&[]).unwrap().matches(&"a".parse().unwrap()));
    }

    #[test]
    fn invalid_globs_are_rejected() {
        assert!(matches!(
            environments(&["ok", "["]),
            Err(GlobError::Syntax { index: 1, .. })
        ));
        assert!(matches!(
            environments(&[""]),
            Err(GlobError::Length { index: 0 })
        ));
        let long = "x".repeat(EnvironmentGlobs::MAX_GLOB_BYTES + 1);
        assert!(matches!(
            environments(&[&long]),
            Err(GlobError::Length { .. })
        ));
        assert!(matches!(environments(&["a"; 65]), Err(GlobError::TooMany)));
    }
}
