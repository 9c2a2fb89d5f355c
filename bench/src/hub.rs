//! A hub with its executors, NATS server and load balancer, and raw endpoints that load it.
//! Invariant: every process started here is ended here by its pid. Raw endpoints register and
//! connect like real ones, but their records are random bytes, which the hub cannot distinguish.

mod balancer;
mod endpoint;
mod nats;
mod process;

pub(crate) use balancer::LoadBalancer;
pub(crate) use endpoint::{data, executor, harness, resume};
pub(crate) use nats::NatsServer;
pub(crate) use process::Hub;
