//! Selected capability roots: what a thread wants to use, and what of it a step can use.
//!
//! The selection is durable: root id, environment id, path. Each step pairs it with the handles that
//! the step has captured. Invariant: a root resolves through the handle that was ready in the step's
//! snapshot, never through another one of the same environment.
//! Not here: reading any capability file ([`capabilities`](crate::capabilities)).

mod list;
mod resolve;
mod selected;
#[cfg(test)]
mod tests;

pub use self::{
    list::{MAX_SELECTED_ROOTS, SelectedRoots, TooManyRoots},
    resolve::{Omission, OmittedRoot, ResolvedRoot, StepRoots, resolve},
    selected::{RootId, RootIdError, RootLocation, SelectedCapabilityRoot},
};
