//! Where the keys and the region of AWS signatures come from: what the caller names, environment
//! values that the caller hands in, and the shared files of the AWS tools.
//! Invariant: keys are looked up anew for every signature, so that whoever rotates them is heard; no
//! text shows a secret.
//! Not here: roles, single sign-on and metadata services, which need a vendor's endpoint; a profile
//! that asks for them is refused by name.

mod chain;
mod error;
mod process;
mod profiles;
#[cfg(test)]
mod tests;

pub use self::{
    chain::{Chain, EnvironmentValues, Settings},
    error::{KeysError, RegionError},
};
