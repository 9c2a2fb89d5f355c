//! Directories as a tree is descended: opened below a root, and listed in one go.
//!
//! Invariant: below a root that refuses links no link is followed, however the tree changes in the
//! meantime. Nothing stays open but the root and what the caller holds.
//! Not here: the order in which directories are visited (`walk`, `tree`).

mod names;
mod root;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    names::{Kind, Names},
    root::{Root, open_file},
};
