//! `fs/search`: lines that match.
//!
//! Files are searched by several threads, and what they find is put in order: the answer does not
//! depend on which was faster. If there are too many matches, it has the first of them.

mod lines;
mod pattern;
mod run;
mod supply;
#[cfg(test)]
mod tests;

pub use self::run::search;
