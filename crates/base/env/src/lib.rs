//! The traits of an environment and the values they exchange.
//!
//! The traits are dyn-compatible: embedders bring their own environments. Callers cannot tell local
//! from remote through them. Beside them: helpers over any process. Not here: any implementation, nor
//! the environments of a harness by id (`exec-environments`).

pub mod command;
pub mod credential;
pub mod environment;
pub mod filesystem;
pub mod http;
pub mod process;

#[doc(hidden)]
pub mod backend {
    pub use crate::environment::{ExecBackend, StartError, StartedProcess}; // MOVED
}
#[doc(hidden)]
pub mod catalog {
    pub use crate::environment::{ExecutorCatalog, NoCatalog}; // MOVED
}
#[doc(hidden)]
pub mod disconnect {
    pub use crate::environment::Disconnect; // MOVED
}
#[doc(hidden)]
pub mod network {
    pub use crate::command::{Network, NetworkWatcher}; // MOVED
}
