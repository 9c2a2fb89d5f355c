//! Tokens that a parent process writes to our standard input, one line each, the newest counts.
//!
//! What the parent writes is checked to the letter: a line that is wrong ends the pipe with an error. The
//! end of the pipe is in order, whenever it comes: who closes it wants no executor any more, and half a
//! line is none. Not here: standard input itself, any reader will do.

mod credential;
mod error;
mod frame;
mod lines;
#[cfg(test)]
mod tests;

pub(super) use self::lines::Lines;
pub use self::{
    credential::{CredentialPipe, PipeEnd},
    error::PipeError,
};
