//! Who makes a request, and what that allows.
//! Invariant: a [`Principal`] exists only for a request that authenticated; every right it has is
//! asked for through it.
//! Not here: how it authenticated (`tokens`), who owns an environment (`store`).

use std::{fmt, str::FromStr, sync::Arc};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

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

/// Who somebody is, as the operator named them: `alice`, `ci@example.org`.
///
/// Printable ASCII without blanks, at most [`PrincipalName::MAX_BYTES`]: it goes into files, logs
/// and stores.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PrincipalName(Arc<str>);

impl PrincipalName {
    /// The longest name.
    pub const MAX_BYTES: usize = 128;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PrincipalName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > Self::MAX_BYTES || !printable {
            return Err(NameError);
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

impl Serialize for PrincipalName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PrincipalName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// Caller: the text is no name of a principal.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "expected 1 to {} printable ASCII characters without blanks",
    PrincipalName::MAX_BYTES
)]
pub struct NameError;

/// One kind of request.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Registers environments, and validates those who connect to them.
    Executor,
    /// Connects to environments.
    Harness,
    /// Sees and removes every environment.
    Admin,
}

impl Role {
    /// As it is written in files and tokens.
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

/// Caller: the text is no role.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected `executor`, `harness` or `admin`")]
pub struct RoleError;

/// A set of roles.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Roles(Vec<Role>);

impl Roles {
    /// Takes the roles in any order and number.
    pub fn new(roles: impl IntoIterator<Item = Role>) -> Self {
        let mut roles: Vec<_> = roles.into_iter().collect();
        roles.sort_unstable();
        roles.dedup();
        Self(roles)
    }

    /// Whether `role` is one of them.
    pub fn contains(&self, role: Role) -> bool {
        self.0.contains(&role)
    }

    /// The roles, in order.
    pub fn iter(&self) -> impl Iterator<Item = Role> + '_ {
        self.0.iter().copied()
    }
}

impl Default for Roles {
    /// What somebody needs who runs an executor and works with it.
    fn default() -> Self {
        Self(vec![Role::Executor, Role::Harness])
    }
}

/// The globs of a token, such as `build-*`. None at all is no name at all.
#[derive(Clone, Debug, Default)]
pub struct Environments {
    globs: Vec<String>,
    set: Option<GlobSet>,
}

impl Environments {
    /// The longest glob, and how many a token may have: more than any list people keep by hand.
    pub const MAX_GLOB_BYTES: usize = 256;
    /// See [`Environments::MAX_GLOB_BYTES`].
    pub const MAX_GLOBS: usize = 64;

    /// Takes the globs.
    ///
    /// # Errors
    /// When there are too many, or one is too long or does not parse.
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

    /// Whether one of the globs matches.
    pub fn name(&self, environment: &EnvironmentId) -> bool {
        let matches = |set: &GlobSet| set.is_match(environment.as_str());
        self.set.as_ref().is_some_and(matches)
    }

    /// Whether there are no globs.
    pub fn is_empty(&self) -> bool {
        self.globs.is_empty()
    }

    /// The globs as they were given.
    pub fn globs(&self) -> &[String] {
        &self.globs
    }
}

/// Caller: the globs cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GlobError {
    /// Caller: too many.
    #[error("more than {} environment globs", Environments::MAX_GLOBS)]
    TooMany,
    /// Caller: empty or too long.
    #[error(
        "environment glob {index} must have 1 to {} bytes",
        Environments::MAX_GLOB_BYTES
    )]
    Length {
        /// Which one, from 0.
        index: usize,
    },
    /// Caller: no glob.
    #[error("environment glob {index} is no glob")]
    Syntax {
        /// Which one, from 0.
        index: usize,
        /// What is wrong.
        source: globset::Error,
    },
    /// Caller: all of them together are too much.
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

    #[test]
    fn names_are_printable_and_bounded() {
        let longest = "n".repeat(PrincipalName::MAX_BYTES);
        for good in ["alice", "ci@example.org", "a/b:c", longest.as_str()] {
            assert_eq!(good.parse::<PrincipalName>().unwrap().as_str(), good);
        }
        let too_long = "n".repeat(PrincipalName::MAX_BYTES + 1);
        for bad in ["", " ", "a b", "a\n", "\u{1b}[0m", "é", too_long.as_str()] {
            assert_eq!(bad.parse::<PrincipalName>(), Err(NameError), "{bad:?}");
        }
    }

    fn environments(globs: &[&str]) -> Result<Environments, GlobError> {
        Environments::new(globs.iter().map(|&glob| glob.to_owned()).collect())
    }

    #[test]
    fn globs_name_what_they_match_and_no_more() {
        let build = environments(&["build-*", "box_{1,2}"]).unwrap();
        let names = |id: &str| build.name(&id.parse().unwrap());
        assert!(names("build-7") && names("build-") && names("box_2"));
        assert!(!names("build") && !names("xbuild-7") && !names("box_3") && !names("Build-7"));
    }

    #[test]
    fn no_globs_name_nothing() {
        assert!(!environments(&[]).unwrap().name(&"a".parse().unwrap()));
    }

    #[test]
    fn bad_globs_are_refused() {
        assert!(matches!(
            environments(&["ok", "["]),
            Err(GlobError::Syntax { index: 1, .. })
        ));
        assert!(matches!(
            environments(&[""]),
            Err(GlobError::Length { index: 0 })
        ));
        let long = "x".repeat(Environments::MAX_GLOB_BYTES + 1);
        assert!(matches!(
            environments(&[&long]),
            Err(GlobError::Length { .. })
        ));
        assert!(matches!(environments(&["a"; 65]), Err(GlobError::TooMany)));
    }
}
