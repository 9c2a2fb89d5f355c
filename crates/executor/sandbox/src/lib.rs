//! Sandboxes: a policy becomes a plan, a plan becomes an enclosure that the kernel keeps.
//!
//! A plan is made by pure code from a policy and facts about the host. What this machine cannot
//! enforce is refused; nothing is weakened. Not here: starting processes (`exec-process`), which
//! knows how to apply an enclosure and not why.

pub mod abilities;
mod bubblewrap;
mod domain;
mod enclose;
pub mod facts;
pub mod files;
pub mod filter;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod kept;
pub mod plan;
mod planned;
pub mod policy;
mod sandboxes;
pub mod seatbelt;
mod view;

pub use self::{
    bubblewrap::Wrapper,
    domain::DomainError,
    enclose::{Mechanism, Processes, Refusal},
    planned::Planned,
    sandboxes::{
        CommandRequest, ManagedRequest, Need, Prepared, SandboxError, Sandboxes, Settings,
    },
};
