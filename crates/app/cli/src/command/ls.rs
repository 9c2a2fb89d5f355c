//! `exec-server ls`.
//! Not here: links that lead nowhere in a directory, which servers do not list; one that is named is shown.

mod clock;
mod command;
mod row;

pub use self::command::Ls;
