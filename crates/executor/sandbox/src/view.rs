//! A view becomes steps: which mounts are copied, made read-only, attached and covered, in which
//! order.
//!
//! What is copied is copied while the host's files are still there as they are; then the view is made,
//! from the root down. Nothing is created in a directory of the user's.

mod devices;
mod steps;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    devices::host_settings,
    steps::{Fittings, ViewError, pins, steps},
};
