//! Who makes a request, and what that allows.
//! Invariant: a [`Principal`] exists only for a request that authenticated; every right it has is
//! asked for through it.
//! Not here: how it authenticated (`tokens`), who owns an environment (`store`).

mod environments;
mod identity;
mod name;
mod role;

pub use environments::{Environments, GlobError};
pub use identity::{Evidence, Principal};
pub use name::{NameError, PrincipalName};
pub use role::{Role, RoleError, Roles};
