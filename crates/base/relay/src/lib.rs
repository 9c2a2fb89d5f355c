//! Relay protocol without I/O: frames, Noise channel and reliable streams.
//!
//! A harness and an executor meet on a rendezvous that routes frames ([`frame`]) but cannot read
//! them. The endpoints agree on keys with a hybrid Noise handshake ([`identity`], [`handshake`]),
//! seal records with them, and send messages in records ([`stream`]). Between two endpoints of this
//! crate a stream also survives the loss of its connection.
//!
//! No sockets, clocks or threads: `handle_*` and plain verbs take input, `poll_*` yields output,
//! and `now` is an argument. Randomness is used only for keys. Authorization is in `exec-registry`,
//! websockets and the lifetime of streams are in `exec-transport`.

pub mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod handshake;
pub mod identity;
pub mod limits;
pub mod stream;
