//! Sandboxes: resolves a policy into a plan, and prepares what the kernel needs to enforce it.
//!
//! Policy → plan → enforcement. Pure code resolves a policy with facts about the host into a
//! [`plan`]. The cheapest mechanism that can enforce all of the plan is then selected: Landlock,
//! namespaces or bubblewrap. A policy that this host cannot enforce is refused, never weakened.
//!
//! Not here: starting processes and applying a sandbox set-up between clone and exec.

pub mod abilities;
mod bubblewrap;
mod enforcement;
pub mod facts;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod landlock_domain;
mod mount_steps;
pub mod plan;
mod plan_cache;
pub mod policy;
mod sandbox_factory;
pub mod sandboxed_fs;
pub mod seatbelt;
pub mod syscall_filter;

pub use self::{
    bubblewrap::BubblewrapCommand,
    enforcement::{EnforcementError, MechanismChoice, ProcessIsolation},
    landlock_domain::LandlockError,
    plan_cache::CachedPlan,
    sandbox_factory::{
        CommandRequest, ManagedNetworkRequest, PreparedSandbox, SandboxError, SandboxFactory,
        SandboxSettings,
    },
};
