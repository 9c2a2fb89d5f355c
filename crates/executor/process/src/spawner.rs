//! The async side of a spawner: starts it, sends it commands, and hears from supervisors.
//!
//! `exec-spawn` has the spawner itself, the supervisors, and what they send each other.

mod handle;
mod link;

#[cfg(test)]
mod tests;

pub use self::handle::{Child, Spawner};
pub use exec_spawn::spawner::{
    ExitReport, Extra, Limit, Report, Resource, SpawnError, Spec, Stage,
};
pub use exec_spawn::spawner::{adopt_orphans, run_if_spawner}; // MOVED
