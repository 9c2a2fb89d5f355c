//! `/hub/v1/environments`: what there is, and how to be rid of it.
//! Admins see everything, others what they own.

mod list;
mod service;
#[cfg(test)]
mod tests;

pub use list::{EnvironmentList, EnvironmentStatus, Transport};
pub use service::Admin;
