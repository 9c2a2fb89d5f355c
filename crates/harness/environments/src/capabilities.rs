//! Skills and plugins below selected roots: found once, shown in every step that can use them.
//!
//! What is found belongs to an environment id and a root, not to a handle: replacing a handle finds
//! nothing anew. Each step shows only what lies below the roots that it has resolved.
//! Not here: which roots a step has ([`roots`](crate::roots)), nor starting what a plugin declares.

mod available;
mod cache;
mod discover;
mod front_matter;
mod metadata;
mod store;
#[cfg(test)]
mod tests;

pub use self::{
    available::{AvailableCapabilities, AvailablePlugin, AvailableSkill, FailedRoot, RootWarning},
    cache::CapabilityCache,
    discover::{DISCOVERY_TIMEOUT, DiscoverError},
    front_matter::FrontMatter,
    metadata::{Plugin, RootCapabilities, Skill},
    store::{MAX_CACHED_BYTES, MAX_CACHED_ROOTS},
};
