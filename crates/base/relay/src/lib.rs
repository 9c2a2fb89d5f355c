//! Frames, NoiseState channel and reliable streams of the relay, without any I/O.
//!
//! A harness and an executor meet on a rendezvous that routes frames ([`frame`], [`route`]) and cannot
//! read them: the endpoints make keys with a hybrid NoiseState handshake ([`identity`], [`handshake`]), seal
//! records with these ([`channel`]), and carry messages in records ([`stream`]). Between two endpoints
//! of this crate a stream also survives the loss of its connection.
//!
//! No sockets, clocks or threads: input comes in by `handle_*` and plain verbs, output goes out by
//! `poll_*`, and `now` is an argument. Randomness is used for keys alone. Not here: who may connect
//! (`exec-registry`), websockets and the life of streams (`exec-transport`).

pub mod channel;
pub mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod handshake;
pub mod identity;
pub mod limits;
pub mod route;
pub mod stream;
