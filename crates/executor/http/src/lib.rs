//! HTTP requests from this machine.
//!
//! Nothing is read or built before the first request: no certificates, no connection pool. Variables
//! and proxies come from an environment that is handed in. Bodies are passed on as they came, also
//! when they are compressed. Not here: the wire (`exec-service`), requests from elsewhere
//! (`exec-client`).

mod body;
mod client;
mod deadline;
mod held;
mod pool;
mod request;
mod roots;

pub use self::client::LocalHttpClient;
