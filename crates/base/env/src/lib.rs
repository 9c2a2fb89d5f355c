//! The traits of an environment and the values they exchange.
//!
//! The traits are dyn-compatible, so embedders can bring their own environments. Local and remote
//! implementations behave the same. The crate also holds helpers that work with any process, and the
//! reader of skill files. Not here: any implementation, and the environments of a harness by id
//! (`exec-environments`).

pub mod credential;
pub mod durable;
pub mod environment;
pub mod filesystem;
pub mod front_matter;
pub mod http;
pub mod process;
pub mod tunnel;
pub mod yaml;
