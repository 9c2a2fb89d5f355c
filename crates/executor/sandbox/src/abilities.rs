//! What this machine can enforce, found by trying.

mod bubblewrap;
mod host;
mod landlock;
mod outlook;
mod probe;

pub use self::{
    host::{Cgroups, Host},
    outlook::{Outlook, outlook},
    probe::{Abilities, Ability, Thoroughness, probe},
};
