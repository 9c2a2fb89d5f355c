//! What to start for a person, and where: the map of it.

mod refused;
mod start;
mod surroundings;

pub(crate) use self::start::{LEAVE_KEYS, Launch, Outcome, detach, new_id, run, run_without_input};
pub use self::surroundings::{NetworkReach, SandboxChoice, Setting, Surroundings};
