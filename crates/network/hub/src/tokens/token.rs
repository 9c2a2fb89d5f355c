//! A token, its id and its hash.

use std::fmt;

use aws_lc_rs::{error::Unspecified, rand};
use base64_simd::URL_SAFE_NO_PAD;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// A token: 256 random bits with a prefix that secret scanners can look for. `Debug` hides it.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    const PREFIX: &str = "exh_";
    const BYTES: usize = 32;

    /// Makes a new one.
    ///
    /// # Errors
    /// When the host has no randomness.
    pub(super) fn generate() -> Result<Self, Unspecified> {
        let mut bytes = [0; Self::BYTES];
        rand::fill(&mut bytes)?;
        let text = URL_SAFE_NO_PAD.encode_to_string(bytes);
        Ok(Self(format!("{}{text}", Self::PREFIX)))
    }

    /// The text of it, to be shown once to whoever asked for the token.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The SHA-256 of a token, which is all that the hub keeps of it.
///
/// Tokens are looked up by it. That takes no constant time and need not: a token has 256 random
/// bits, so nobody can choose hashes near to one that exists.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub(super) struct Digest256([u8; 32]);

impl Digest256 {
    pub(super) fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    pub(super) fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads 64 hexadecimal digits.
    pub(super) fn from_hex(hex: &str) -> Option<Self> {
        let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return None;
        }
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(pairs) {
            let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
            *byte = u8::try_from(high? << 4 | low?).ok()?;
        }
        Some(Self(digest))
    }
}

impl fmt::Debug for Digest256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest256(..)")
    }
}

/// Names a token in lists and logs. No secret.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct TokenId(String);

impl TokenId {
    /// The longest id.
    const MAX_BYTES: usize = 64;

    /// Takes an id. `None`: it is empty, too long, or has characters that need quoting somewhere.
    pub fn new(text: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let good = !text.is_empty() && text.len() <= Self::MAX_BYTES && text.bytes().all(plain);
        good.then(|| Self(text.to_owned()))
    }

    /// Makes a new one: short enough to type.
    pub(super) fn generate() -> Result<Self, Unspecified> {
        let mut bytes = [0; 5];
        rand::fill(&mut bytes)?;
        Ok(Self(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
