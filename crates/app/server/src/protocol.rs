//! What travels: the request and result of every method, one module for each family.
//!
//! A request type *is* its method: [`ExecServerClient::call`](crate::ExecServerClient::call) takes
//! one and gives its result.
//!
//! ```
//! use exec_server::protocol::{method::Method, process::ReadProcess};
//!
//! assert_eq!(ReadProcess::NAME.as_str(), "process/read");
//! ```

pub use exec_wire::{
    config, discovery, environment, error, fs, http, id, initialize, limits, method, network,
    path_uri, process, sandbox,
};
