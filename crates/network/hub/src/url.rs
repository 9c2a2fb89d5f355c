//! Rendezvous URLs: what the registry hands out, and what the rendezvous lets in.
//!
//! A URL is its own ticket: sockets present nothing else. It is signed with the hub's key, so that
//! every node recognises it and nothing is remembered about it.

mod pass;
mod place;
mod sign;
#[cfg(test)]
mod tests;

pub use self::{
    pass::{Pass, PassError},
    place::{HostError, PublicUrl},
    sign::Signer,
};
