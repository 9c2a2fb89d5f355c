//! What kinds of requests a principal may make.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

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
