//! The patches that agents write: `*** Begin Patch`, then files that are added, updated, moved or
//! deleted, then `*** End Patch`.
//! Invariant: nothing here touches a file. Text comes in, text or a complaint that names the place
//! goes out.

mod apply;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod parse;
#[cfg(test)]
mod tests;
mod wrapper;

pub(super) use self::{
    apply::apply,
    parse::{Operation, ParseError, Patch},
};
