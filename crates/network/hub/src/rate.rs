//! How often somebody may ask: token buckets by principal and by address.
//! Invariant: tables are bounded. When one is full of busy strangers, those who are new share one
//! bucket, so that a flood of addresses costs the others nothing.
//! Not here: `register` and the sockets of executors, which are never limited: executors take a
//! refusal for good. Who comes there without a token that counts is counted by address.

mod bucket;
mod limits;

pub use bucket::{Buckets, Rule};
pub use limits::{Asked, Limited, RateLimits, RateRules};
