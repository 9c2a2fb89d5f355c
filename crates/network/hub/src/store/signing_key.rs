//! Secrets the store holds. Their `Debug` hides them.

use std::fmt;

use aws_lc_rs::{error::Unspecified, rand};
use sha2::{Digest, Sha256};

use super::EnvironmentId;

/// The key that signs rendezvous URLs. All nodes of a hub share one.
#[derive(Clone, Eq, PartialEq)]
pub struct SigningKey([u8; Self::LEN]);

impl SigningKey {
    /// Bytes in a key: as long as the hash.
    pub const LEN: usize = 32;

    /// Makes a new key from the system's randomness.
    ///
    /// # Errors
    /// When the host has none.
    pub fn generate() -> Result<Self, Unspecified> {
        let mut key = [0; Self::LEN];
        rand::fill(&mut key)?;
        Ok(Self(key))
    }

    /// Takes a stored key. `None`: it has another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The key itself, to sign or to store with.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

/// What the store knows of a harness authorization: a SHA-256 over environment and token.
///
/// Looking one up needs no constant time: whoever probes chooses tokens, not hashes.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// Hashes a token. The environment is part of it, so that a token means nothing elsewhere.
    pub fn of(environment: &EnvironmentId, token: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(environment.as_str());
        // No id has this byte, so no other pair gives the same input.
        hash.update([0]);
        hash.update(token);
        Self(hash.finalize().into())
    }

    /// 64 hexadecimal digits: a key for any store.
    pub fn to_hex(self) -> String {
        hex(&self.0)
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        use fmt::Write as _;
        // Writing to a string does not fail.
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_hashes_differently_in_each_environment() {
        let environment = |id: &str| id.parse::<EnvironmentId>().unwrap();
        let hash = TokenHash::of(&environment("a"), "t");
        assert_eq!(hash, TokenHash::of(&environment("a"), "t"));
        assert_ne!(hash, TokenHash::of(&environment("b"), "t"));
        assert_ne!(hash, TokenHash::of(&environment("a"), "T"));
        assert_eq!(hash.to_hex().len(), 64);
    }

    #[test]
    fn debug_hides_secrets() {
        let key = SigningKey::from_bytes(&[7; 32]).unwrap();
        assert_eq!(format!("{key:?}"), "SigningKey(..)");
        assert_eq!(SigningKey::from_bytes(&[7; 31]), None);
        assert_ne!(
            SigningKey::generate().unwrap(),
            SigningKey::generate().unwrap()
        );
    }
}
