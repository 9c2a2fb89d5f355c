//! Chance, from a key: the same key and number give the same, and another key gives another.

use std::time::Duration;

use sha2::{Digest, Sha256};

/// Picks a duration from nothing to `most`, both included.
pub(super) fn pick(key: &str, number: u32, most: Duration) -> Duration {
    let mut hash = Sha256::new();
    hash.update(number.to_be_bytes());
    hash.update(key.as_bytes());
    let mut first = [0; 4];
    for (to, from) in first.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
    most.mul_f64(f64::from(u32::from_be_bytes(first)) / f64::from(u32::MAX))
}
