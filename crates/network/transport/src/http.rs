//! The HTTP faces of a listener: the [door](Door) of a server, which has four routes, and
//! [sites](site) that bring their own.

mod allowed_hosts;
mod connection;
mod door;
mod exposition;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod handshake;
mod pending_connections;
pub mod site;

pub use self::{
    allowed_hosts::{AllowedHosts, HostNames, HostNamesParseError},
    door::Door,
    exposition::{Exposition, Lookout},
    handshake::wants_websocket,
    pending_connections::PendingLimits,
};
pub(crate) use self::{
    door::{refuse, serve as serve_door},
    pending_connections::PendingConnections,
};
