//! Which environments a harness works in: the variables of the relay, `environments.toml`, another
//! variable, and a key of the configuration file of the Codex home.
//!
//! [`Selection::find`] looks where the settings are and decides; what it reads comes in as arguments,
//! so that it is a pure function. Invariant: a setting that cannot be understood is an error that names
//! its place, never a reason to run commands somewhere else.

mod entry;
mod error;
mod file;
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
    home::CodexHome,
    reach::{AuthToken, ProgramReach, Reach, RelayReach, UrlReach},
    relay::RelayFault,
    select::{Facts, SelectError, Selection},
};
pub(crate) use self::{open::ReachError, relay::VARIABLES as RELAY_VARIABLES};
