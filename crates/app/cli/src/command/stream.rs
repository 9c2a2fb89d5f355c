//! A person, or a pipe, in talk with a process: its output here, our input there, signals and the
//! size of the window passed on, outages of the connection told.
//! Invariant: bytes come out as the process wrote them, in their order; a reader that is slow, or
//! stopped, pauses a process of ours and loses nothing, and never holds up a signal.

mod ending;
mod feed;
mod input;
mod keys;
mod modes;
mod notice;
mod output;
mod signals;
mod talk;

pub use self::keys::{DetachKeys, DetachKeysError};
pub(crate) use self::{
    ending::{byte, timed_out, unwritten},
    input::Input,
    notice::{Notice, telling},
    output::{Sink, complain, say, say_bytes},
    signals::Signals,
    talk::{End, GRACE, Owner, Talk, Terminal},
};
