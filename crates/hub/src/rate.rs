//! How often somebody may ask: token buckets by principal and by address.
//! Invariant: tables are bounded. When one is full of busy strangers, those who are new share one
//! bucket, so that a flood of addresses costs the others nothing.
//! Not here: `register`, which is never limited: executors take a refusal for good.

mod bucket;
mod limits;

pub use bucket::{Buckets, Rule};
pub use limits::{Asked, Limited, RateLimits, RateRules};
