//! The traits of an environment and the values they exchange.
//!
//! The traits are dyn-compatible: embedders bring their own environments. Callers cannot tell local
//! from remote through them. Beside them: the environments of a harness by their ids, and what a model
//! step may use of them. Not here: any implementation.

pub mod backend;
pub mod capabilities;
pub mod catalog;
pub mod command;
pub mod credential;
pub mod disconnect;
pub mod environment;
#[cfg(test)]
mod fakes;
pub mod filesystem;
pub mod http;
pub mod manager;
pub mod network;
pub mod process;
pub mod roots;
pub mod thread;
