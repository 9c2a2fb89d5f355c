//! `fs/walk`: a tree, breadth first.
//!
//! It does as the stock server does, limit by limit. A tree that changes meanwhile is listed as it
//! was found: what vanished is left out, and a directory that became a link is not entered.

mod ahead;
#[cfg(test)]
mod tests;
mod walker;

pub use self::walker::walk;
