//! The configuration of Codex on this machine, layer by layer.

mod git;
mod layers;
mod managed;
mod project;
mod read;
mod select;
#[cfg(test)]
mod tests;
mod trust;

pub(super) use self::read::read;
