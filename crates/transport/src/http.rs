//! The HTTP faces of a listener: the [door](Door) of a server, which has three routes, and
//! [sites](site) that bring their own.

mod connection;
mod door;
pub mod site;
mod upgrade;

pub(crate) use self::door::serve as serve_door;
pub use self::{door::Door, upgrade::wants_websocket};
