//! `exec-server grep`.

mod command;
mod lines;

pub use self::command::Grep;
