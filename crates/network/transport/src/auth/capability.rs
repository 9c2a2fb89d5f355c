//! The capability token: one secret, known to the server by its SHA-256 only.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The SHA-256 of a capability token.
///
/// `Debug` hides it, and it has no `PartialEq`: comparing is [`TokenDigest::matches`], which takes
/// the same time wherever the first difference is.
#[derive(Clone)]
pub struct TokenDigest([u8; Self::LEN]);

impl TokenDigest {
    /// Bytes in a digest.
    const LEN: usize = 32;

    /// Hashes a token, without the blanks around it.
    ///
    /// An empty token gives a digest that no request can match.
    pub fn of_token(token: &str) -> Self {
        Self(Sha256::digest(token.trim()).into())
    }

    /// Reads a digest from 64 hexadecimal digits, in either case.
    ///
    /// # Errors
    /// When the text, without the blanks around it, is anything else.
    pub fn from_hex(hex: &str) -> Result<Self, DigestParseError> {
        let (pairs, rest) = hex.trim().as_bytes().as_chunks::<2>();
        if pairs.len() != Self::LEN || !rest.is_empty() {
            return Err(DigestParseError);
        }
        let mut digest = [0; Self::LEN];
        for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
            *byte = nibble(*high)? << 4 | nibble(*low)?;
        }
        Ok(Self(digest))
    }

    /// Whether `token` is the one that was hashed. Blanks around it do not count.
    pub fn matches(&self, token: &str) -> bool {
        Self::of_token(token).0.ct_eq(&self.0).into()
    }
}

impl FromStr for TokenDigest {
    type Err = DigestParseError;

    fn from_str(hex: &str) -> Result<Self, Self::Err> {
        Self::from_hex(hex)
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest(..)")
    }
}

/// Caller: the text is no SHA-256. It is not repeated here, since it may be the token itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected a SHA-256 digest of 64 hexadecimal digits")]
pub struct DigestParseError;

fn nibble(digit: u8) -> Result<u8, DigestParseError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(DigestParseError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `abc` (FIPS 180-4, example 1).
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn hex_in_either_case_matches_its_token() {
        for hex in [ABC.to_owned(), ABC.to_uppercase(), format!(" {ABC}\n")] {
            let digest = TokenDigest::from_hex(&hex).unwrap();
            assert!(digest.matches("abc"));
            assert!(!digest.matches("abd"));
            assert!(!digest.matches(""));
        }
    }

    #[test]
    fn token_is_hashed_without_the_blanks_around_it() {
        assert!(TokenDigest::of_token(" abc\r\n").matches("abc"));
        assert!(!TokenDigest::of_token("a bc").matches("abc"));
    }

    #[test]
    fn other_text_is_no_digest() {
        let short = &ABC[1..];
        let (long, foreign) = (format!("{ABC}0"), format!("{short}g"));
        let (prefixed, signed) = (format!("0x{}", &ABC[2..]), format!("+{short}"));
        for hex in ["", short, &long, &foreign, &prefixed, &signed, "abc"] {
            assert_eq!(
                TokenDigest::from_hex(hex).err(),
                Some(DigestParseError),
                "{hex:?}"
            );
        }
    }

    #[test]
    fn debug_hides_the_digest() {
        assert_eq!(
            format!("{:?}", TokenDigest::of_token("abc")),
            "TokenDigest(..)"
        );
    }
}
