//! A hub, what stands around it, and raw endpoints that load it.
//! Invariant: what was started here is ended here, by its pid. Raw endpoints register and connect as real
//! ones do, but their records are noise of the other kind: the hub cannot tell.

mod balancer;
mod endpoint;
mod frame;
mod nats;
mod process;
mod registry;

pub(crate) use balancer::Balancer;
pub(crate) use endpoint::{executor, harness};
pub(crate) use frame::{data, resume};
pub(crate) use nats::Nats;
pub(crate) use process::Hub;
