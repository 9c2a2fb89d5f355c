//! Which processes a harness has going: numbers, ids, cursors, and a bound.
//!
//! A number is given once. A process is taken out for each window of its output, so that no two
//! windows show the same bytes; its end is told once. Not here: when to look at a process, and what
//! to make of its output.

mod entries;
mod session;
mod shared;

#[cfg(test)]
mod tests;

pub use self::{
    entries::{Ended, ProcessNumber, Removed, WhenFull},
    session::{Session, Windowed},
    shared::{Allocated, OpenError, ProcessTable, TableFull},
};
