//! Who may open a websocket: the check of the `Authorization` header on the upgrade request.
//! Invariant: pure. The caller brings the header's bytes and the time; nothing here reads a file,
//! a clock or the environment, and no secret appears in `Debug` output or in an error.
//! Not here: the `403` for requests with an `Origin` (the listener), where secrets come from (the
//! product crate's configuration).

mod bearer;
mod capability;
mod jwt;
mod policy;
mod rejection;
#[cfg(test)]
mod tests;

pub use capability::{DigestParseError, TokenDigest};
pub use jwt::{JwtRules, SecretTooShort};
pub use policy::{Auth, UnixSeconds};
pub use rejection::AuthRejection;
