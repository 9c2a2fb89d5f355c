//! Which environments a harness works in: the variables of the relay, our own `environments.toml`, that
//! of Codex, another variable, and a key of the configuration file of the Codex home.
//! The files of Codex are never written.
//!
//! [`Selection::find`] looks where the settings are and decides; what it reads comes in as arguments,
//! so that it is a pure function. Invariant: a setting that cannot be understood is an error that names
//! its place, never a reason to run commands somewhere else.

mod entry;
mod error;
mod file;
mod foreign;
mod home;
mod open;
mod reach;
mod reader;
mod relay;
mod select;
#[cfg(test)]
mod tests;

pub use self::{
    entry::Remote,
    error::{EnvironmentsError, Fault},
    file::parse,
    foreign::{ForeignKey, foreign_keys},
    home::CodexHome,
    reach::{AuthToken, ProgramReach, Reach, RelayReach, UrlReach},
    relay::RelayFault,
    select::{Facts, SelectError, Selection},
};
pub(crate) use self::{file::parse_over, open::ReachError, relay::VARIABLES as RELAY_VARIABLES};
