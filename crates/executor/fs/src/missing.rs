//! Watching for missing paths to appear, so that a client can remember that they are missing.
//!
//! In every directory on the way to a path the next name is watched, and only then looked at: a
//! change either is seen or is told. A path that leads through a link is not watched, as with the
//! stock server, because the way would fork.
//!
//! A change of what lies on the way is told as well: its removal, its rename, and new permissions,
//! which can hide and show what is below.
//! Not here: how many watches a client may have, and when a new one ends the last.

mod begin;
#[cfg(test)]
mod tests;
mod way;

pub use begin::watch_missing;
