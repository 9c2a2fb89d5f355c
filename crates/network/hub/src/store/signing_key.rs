//! The signing key and token hashes. Their `Debug` output is redacted.

use std::fmt;

use aws_lc_rs::{error::Unspecified, rand};
use sha2::{Digest, Sha256};

use super::EnvironmentId;

/// The key that signs rendezvous URLs. All nodes of a hub share it.
#[derive(Clone, Eq, PartialEq)]
pub struct SigningKey([u8; Self::LEN]);

impl SigningKey {
    /// Key length in bytes, equal to the hash length.
    pub const LEN: usize = 32;

    /// Generates a key.
    ///
    /// # Errors
    /// Returns an error if the host provides no randomness.
    pub fn generate() -> Result<Self, Unspecified> {
        let mut key = [0; Self::LEN];
        rand::fill(&mut key)?;
        Ok(Self(key))
    }

    /// Wraps a stored key. Returns `None` if its length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Returns the key bytes.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

/// SHA-256 over environment and token, under which an authorization is stored.
///
/// Lookups need not be constant-time: an attacker chooses tokens, not hashes.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// Hashes a token together with its environment, so that it is invalid in others.
    pub fn of(environment: &EnvironmentId, token: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(environment.as_str());
        // Ids do not contain this byte, so the encoding is unambiguous.
        hash.update([0]);
        hash.update(token);
        Self(hash.finalize().into())
    }

    /// Returns 64 hexadecimal digits, usable as a key in any store.
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
    fn token_hash_depends_on_the_environment() {
        let environment = |id: &str| id.parse::<EnvironmentId>().unwrap();
        let hash = TokenHash::of(&environment("a"), "t");
        assert_eq!(hash, TokenHash::of(&environment("a"), "t"));
        assert_ne!(hash, TokenHash::of(&environment("b"), "t"));
        assert_ne!(hash, TokenHash::of(&environment("a"), "T"));
        assert_eq!(hash.to_hex().len(), 64);
    }

    #[test]
    fn debug_redacts_secrets() {
        let key = SigningKey::from_bytes(&[7; 32]).unwrap();
        assert_eq!(format!("{key:?}"), "SigningKey(..)");
        assert_eq!(SigningKey::from_bytes(&[7; 31]), None);
        assert_ne!(
            SigningKey::generate().unwrap(),
            SigningKey::generate().unwrap()
        );
    }
}
