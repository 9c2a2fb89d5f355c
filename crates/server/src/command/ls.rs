//! `exec-server ls`.
//! Not here: links that lead nowhere, which servers do not list.

mod clock;
mod command;
mod row;

pub use self::command::Ls;
