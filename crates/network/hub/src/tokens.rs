//! How a request proves who makes it: tokens of the token file, and signed JWTs.
//! Invariant: a token itself exists only where it is made and where it is presented; the file, the
//! memory of the hub and every log hold hashes and ids.
//! Not here: what a principal may do (`principal`), signed requests of direct executors (`direct`).

mod authenticator;
mod edit;
mod file;
mod jwt;
mod lock;
#[cfg(test)]
mod tests;
mod token;
mod watch;

pub use authenticator::{AuthenticateError, Authenticator};
pub use edit::{EditError, NewToken, create, list, revoke};
pub use file::{Entry, EntryProblem, ReadError};
pub use jwt::{JwtAuthority, JwtError};
pub use token::{Token, TokenId};
pub use watch::{Health, Tokens};
