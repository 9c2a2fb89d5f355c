//! The files of a tree that somebody works on: without what ignore files name, in order of path.
//!
//! What is left out is what ripgrep leaves out: whatever an ignore file names, hidden files unless
//! one names them with `!`, and links. Two things differ: `.gitignore` counts outside a repository,
//! too, and nothing outside the tree and the directories above it has a say; the user's own git
//! configuration does not.
//! Not here: what is done with the files (`search`, `find`).

mod rules;
#[cfg(test)]
mod tests;
mod visit;

pub(crate) use self::visit::Tree;
