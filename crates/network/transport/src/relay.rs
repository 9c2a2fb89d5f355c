//! Links through a relay that cannot read them: the drivers of `exec-relay` over websockets.
//!
//! A [harness] opens one websocket for one stream; an [executor] serves many streams on its one. Each
//! stream is a [`Link`](crate::link::Link) to whoever uses it. Frames, keys, order and acknowledgement
//! are `exec-relay`'s business; here sockets are read and written, streams are found by their id, and
//! the clock runs.
//!
//! Invariant: a stream that fails or is slow costs no other stream anything; whatever a peer can make
//! us keep has a bound. Not here: how tickets are got and claims are checked (`exec-registry`).

mod alarm;
mod bell;
mod cell;
mod end;
pub mod executor;
mod halves;
pub mod harness;
mod turns;

pub use self::end::End;
