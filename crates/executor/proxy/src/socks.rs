//! The proxy's SOCKS5 side (RFC 1928), without authentication: streams, and datagrams.

mod datagram;
mod flow;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod message;
mod serve;

pub(crate) use self::{
    datagram::Datagrams,
    serve::{serve, turn_away},
};
