//! `exec-server edit`.
//! Invariant: what somebody wrote is never lost: it is in the environment, or in a file here that is
//! named.

mod command;
mod draft;

pub use self::command::Edit;
