//! `exec-server env`: which environments there are, and whether they answer.
//! Invariant: our `environments.toml` is replaced whole or not at all, and never by a text that would not
//! be understood; that of Codex is never written.

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
pub use self::list::warn_of_foreign_keys;
