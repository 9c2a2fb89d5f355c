//! `exec-server env`: which environments there are, and whether they answer.
//! Invariant: `environments.toml` is replaced whole or not at all, and never by a text that would not be
//! understood.

mod add;
mod default;
mod entry;
mod file;
mod line;
mod list;
mod remove;
mod row;
mod status;

pub use self::line::Env;
