//! Ways to a server: where it is, how it is reached, and what becomes of a session when the way
//! breaks.
//!
//! Arguments are plain values; each makes a [`Connector`](crate::connector::Connector) that opens
//! links for as long as the client lives, and what the client says of itself. Not here: opening the
//! links themselves (`exec-transport`), coming back (`driver`).

mod memory;
mod relay;
mod remote;
mod stdio;
#[cfg(test)]
mod tests;

pub use self::{
    memory::MemoryConnector,
    relay::{RelayConnector, RelayExecServerConnectArgs},
    remote::{RemoteConnector, RemoteExecServerConnectArgs},
    stdio::{StdioConnector, StdioExecServerConnectArgs},
};
