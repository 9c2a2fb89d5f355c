//! `exec-server hub`: running a hub, its tokens, and a look at what it knows.
//!
//! Everything that a hub is, is in `exec-hub`; here is where its files are, what is printed, and when it
//! stops. Invariant: a token is printed once, by whoever made it, and nothing secret ever else.

mod environments;
mod memory;
mod places;
mod run;
#[cfg(test)]
mod tests;
mod tokens;

pub use self::{environments::list_environments, run::run_hub, tokens::edit_tokens};
