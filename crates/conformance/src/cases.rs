//! The cases, by family. Each gets a fresh subject.
#![expect(missing_docs, reason = "the names of the cases are sentences")]

pub mod copying;
pub mod directories;
pub mod ending;
pub mod environment;
pub mod exit;
pub mod files;
pub mod finding;
pub mod handles;
pub mod input;
pub mod lifetime;
pub mod limits;
pub mod links;
pub mod metadata;
pub mod missing;
pub mod order;
pub mod output;
pub mod pace;
pub mod paths;
pub mod reading;
pub mod removing;
pub mod renaming;
pub mod sandbox;
pub mod sandboxed;
pub mod sandboxed_files;
pub mod searching;
pub mod start;
pub mod terminal;
pub mod waiting;
pub mod walking;
pub mod watching;
pub mod writing;
