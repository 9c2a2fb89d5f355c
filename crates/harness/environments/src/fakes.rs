//! Environments for tests: nothing runs in them, and the test decides when they are ready and what they
//! answer.

mod catalog;
mod environment;
mod source;
mod within;

pub(crate) use self::{
    catalog::Shelf,
    environment::{environment, environment_with, id, label},
    source::{Controlled, Scripted},
    within::within,
};
