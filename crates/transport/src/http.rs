//! The HTTP faces of a listener: the [door](Door) of a server, which has four routes, and
//! [sites](site) that bring their own.

mod connection;
mod door;
mod exposition;
pub mod site;
mod upgrade;

pub(crate) use self::door::{refuse, serve as serve_door};
pub use self::{
    door::Door,
    exposition::{Exposition, Lookout},
    upgrade::wants_websocket,
};
