//! The traits of an environment and the values they exchange.
//!
//! The traits are dyn-compatible: embedders bring their own environments. Callers cannot tell local
//! from remote through them. Beside them: helpers over any process. Not here: any implementation, nor
//! the environments of a harness by id (`exec-environments`).

pub mod backend;
pub mod catalog;
pub mod command;
pub mod credential;
pub mod disconnect;
pub mod environment;
pub mod filesystem;
pub mod http;
pub mod network;
pub mod process;
