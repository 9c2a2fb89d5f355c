//! Rules that hold for the whole workspace and that neither rustc nor clippy knows.
//!
//! Each file below is one rule, a pure function from what was read to findings. Only `tree`
//! and `links` look at the file system. Not here: formatting, lints, licences of dependencies.

mod credentials;
mod doc_examples;
mod documents;
mod finding;
mod layers;
mod links;
mod markers;
mod modules;
mod prose;
mod protocol;
mod run;
mod size;
mod source;
mod tree;
mod type_names;

pub(crate) use self::run::run;
