//! The traits of an environment and the values they exchange.
//!
//! The traits are dyn-compatible: embedders bring their own environments. Callers cannot tell local
//! from remote through them. Not here: any implementation.

pub mod backend;
pub mod command;
pub mod environment;
pub mod filesystem;
pub mod network;
pub mod process;
