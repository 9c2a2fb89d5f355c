//! What is configured and installed on this machine: configuration layers, plugins, skills.
//!
//! Everything is read through a file system, so that what a policy forbids to `fs/*` is forbidden here
//! too, and nothing blocks the caller's thread. Each file, each root and each answer has a limit.
//! Not here: where the homes are (the product crate says so), what a client does with the answers.

mod aside;
mod bundle;
mod config;
mod installed;
mod local;
mod manifest;
mod reader;
mod roots;
#[cfg(test)]
mod tests;

pub use self::local::{CatalogConfig, LocalCatalog};
