//! Copies a file, a link or a tree: content and permission bits, not dates or owners.
//!
//! Content goes from descriptor to descriptor, in blocks; a tree's directories are open while their
//! entries are copied, so a directory that is swapped for a link does not lead elsewhere.

mod file;
mod operation;
#[cfg(test)]
mod tests;
mod tree;

pub use self::operation::copy;
