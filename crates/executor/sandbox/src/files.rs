//! Operations on files under a policy, done by small processes that the policy encloses.
//!
//! A *hand* is a fresh image of this program, started under a name of its own and enclosed before it
//! is asked for anything: it then does for the server what `exec-fs` does without a policy, one
//! request at a time, and passes back what it opened. The kernel keeps the policy; nothing here looks
//! at a path. Hands are kept for the next request under an equal [`Plan`](crate::plan::Plan) whose paths
//! name the same files, and never serve another one.
//!
//! Not here: what a policy comes to (`plan`), the operations (`exec-fs`), their order (`exec-local`).

mod boot;
mod channel;
mod door;
mod frame;
mod hand;
mod hear;
mod key;
mod perform;
mod pool;
mod request;
mod serve;
mod tell;

pub(crate) use self::key::Key;
pub use self::{
    boot::run_if_hand,
    door::{Enclose, Files, Read},
    pool::Bounds,
    request::{Reply, Request},
};

#[cfg(test)]
mod tests;
