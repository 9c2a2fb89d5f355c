//! From a policy to a plan: what the `sandbox` object of a request comes to on this host.
//!
//! Pure: everything about the host comes through [`Facts`](crate::facts::Facts), and the same
//! facts make the same plan. Invariant: a plan never allows what the policy does not; what cannot
//! be told is treated as if it were the worst. Not here: how a plan is enforced.

mod bounds;
mod context;
mod error;
mod glob;
mod metadata;
mod profile;
#[cfg(any(test, fuzzing))]
pub(crate) mod reference;
mod resolve;
mod rules;
mod scan;
mod target;
#[cfg(test)]
mod tests;
mod trace;

pub use context::{Context, Purpose};
pub use error::{GlobFault, Member, PolicyError};
pub use profile::{reads_everything, writes_everything};
pub use resolve::resolve;
