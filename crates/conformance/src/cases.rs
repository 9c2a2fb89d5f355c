//! The cases, by family. Each gets a fresh subject.
#![expect(missing_docs, reason = "the names of the cases are sentences")]

pub mod ending;
pub mod environment;
pub mod exit;
pub mod input;
pub mod lifetime;
pub mod limits;
pub mod output;
pub mod pace;
pub mod reading;
pub mod start;
pub mod terminal;
pub mod waiting;
