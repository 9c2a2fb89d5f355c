//! AWS Signature Version 4 by headers: making signatures, and checking those of others.
//! Invariant: pure. The time is an argument, nothing is sent, and no text shows a secret.
//! Not here: where keys come from (`aws`).

mod canonical;
mod keys;
mod sign;
#[cfg(test)]
mod tests;
mod timestamp;
mod verify;

pub use self::{
    keys::{Keys, SecretKey, SessionToken},
    sign::{Request, Scope, SignError, Signature},
    timestamp::Timestamp,
    verify::{MAX_SKEW, Presented, VerifyError, verify},
};
