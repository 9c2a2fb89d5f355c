//! Sandboxes: a policy becomes a plan, a plan becomes an enclosure that the kernel keeps.
//!
//! A plan is made by pure code from a policy and facts about the host. What this machine cannot
//! enforce is refused; nothing is weakened. Not here: starting processes (`exec-process`), which
//! knows how to apply an enclosure and not why.

pub mod abilities;
mod bubblewrap;
mod enforcement;
pub mod facts;
pub mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod landlock_domain;
mod mount_steps;
pub mod plan;
mod plan_cache;
pub mod policy;
mod sandbox_factory;
pub mod seatbelt;
pub mod syscall_filter;

pub use self::{
    bubblewrap::BubblewrapCommand,
    enforcement::{EnforcementError, Mechanism, Processes},
    landlock_domain::LandlockError,
    plan_cache::Planned,
    sandbox_factory::{
        CommandRequest, ManagedRequest, Need, Prepared, SandboxError, Sandboxes, Settings,
    },
};
