//! JSON Schema and OpenRPC document of the protocol (feature `schema`).
//!
//! Both are generated from the lists of [`crate::method`] and the types they name, so they describe
//! what a peer decodes: members that an older peer omits are optional, and unknown members are
//! allowed. Types with their own decoder have their schema in `custom_schemas`. `cargo xtask docs` writes the
//! documents to `docs/schema`.

mod custom_schemas;
mod document;
#[cfg(test)]
mod tests;

pub(crate) use self::custom_schemas::{open_enum, text};
pub use self::document::{json_schema, openrpc};
