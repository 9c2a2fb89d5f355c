//! The registry: who an environment is, and who may talk to it, over HTTP.
//! Invariant: a request is judged in one order (route, method, rate, principal, body, rights), every
//! refusal has the envelope `{"error":{"code","message"}}`, and every one that names an environment
//! leaves a line in the audit log.
//! Not here: the sockets that the URLs lead to (`rendezvous`), remembering (`store`).

mod body;
mod connect;
mod gate;
mod moment;
mod register;
mod reply;
mod route;
mod service;
#[cfg(test)]
pub(crate) mod tests;
mod validate;

pub(crate) use body::{BodyBudget, Posted};
pub use gate::Gate;
pub(crate) use moment::Moment;
pub(crate) use reply::{Refusal, ok};
pub(crate) use service::Call;
pub use service::{Registry, Services};
