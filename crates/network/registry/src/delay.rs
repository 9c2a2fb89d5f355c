//! How long to wait before another try. Pure: what is random about it is hashed from a key.
//!
//! Not here: who waits, and for how long altogether.

mod ladder;
mod registry;
mod spread;

pub use self::{ladder::Ladder, registry::RegistryDelay};
