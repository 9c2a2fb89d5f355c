//! Agents with a key of their own, which somebody vouches for with a JWT.
//!
//! The JWT holds the agent's private key. It is verified, a task is registered with it once, and each
//! request carries a fresh assertion that is signed with it. Not here: where the JWT comes from.

mod assertion;
mod claims;
mod error;
mod keys;
mod task;
#[cfg(test)]
mod tests;
mod timestamp;

pub use self::{
    assertion::{AgentIdentity, AgentIdentitySettings},
    error::AgentIdentityError,
};
