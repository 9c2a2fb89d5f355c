//! Path URIs: the only way paths appear on the wire.
//!
//! A [`PathUri`] holds the canonical text of a `file:` URI. It names a path of its own
//! [`Convention`], which need not be the convention of this host: only [`PathUri::to_native`]
//! decides that. Paths a `file:` URI would misspell travel as *opaque* URIs, which carry the
//! native bytes and have no lexical structure.
//!
//! Invariant: the text is canonical, so parsing it again yields the same text; and it decodes to
//! a NUL byte only if it is opaque.
//! Not here: anything that looks at a file system (symlinks, existence, `~`).

mod convention;
mod encode;
mod equality;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod join;
mod lexical;
mod native;
mod opaque;
mod parse;
#[cfg(test)]
mod tests;
mod uri;

pub use convention::Convention;
pub use join::JoinError;
pub use native::{FromNativeError, NativePathError};
pub use parse::PathUriError;
pub use uri::PathUri;
