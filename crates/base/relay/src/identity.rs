//! Static keys of the endpoints: one identity per process, and the public half as the registry has it.

mod keys;
mod public;

pub use keys::Identity;
pub use public::{KeyError, PublicKey, SUITE};
