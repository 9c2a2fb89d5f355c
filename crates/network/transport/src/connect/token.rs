//! The secret that a client presents.

use std::fmt;

use http::HeaderValue;

/// A token for `Authorization: Bearer …`. It is shown nowhere: `Debug` hides it.
#[derive(Clone, Eq, PartialEq)]
pub struct BearerToken(HeaderValue);

impl BearerToken {
    /// Takes a token, without the blanks around it.
    ///
    /// # Errors
    /// When nothing is left, or no header can carry it.
    pub fn new(token: &str) -> Result<Self, TokenError> {
        let token = token.trim();
        if token.is_empty() {
            return Err(TokenError::Empty);
        }
        let mut value = HeaderValue::from_bytes(format!("{SCHEME}{token}").as_bytes())
            .map_err(|_| TokenError::Character)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// Returns the value of the header.
    pub(super) fn authorization(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns the token itself.
    pub(super) fn secret(&self) -> &[u8] {
        self.0.as_bytes().get(SCHEME.len()..).unwrap_or_default()
    }
}

/// What stands before a token.
const SCHEME: &str = "Bearer ";

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

/// Caller: the text is no bearer token. It is not repeated.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// There is nothing in it.
    #[error("bearer token is empty")]
    Empty,
    /// It holds a character that a header cannot carry.
    #[error("bearer token holds a control character")]
    Character,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_trimmed_and_hidden() {
        let token = BearerToken::new(" s3cret é\n").unwrap();
        assert_eq!(token.authorization(), "Bearer s3cret é".as_bytes());
        assert_eq!(format!("{token:?}"), "BearerToken(..)");
    }

    #[test]
    fn what_no_header_carries_is_no_token() {
        assert_eq!(BearerToken::new(" \n"), Err(TokenError::Empty));
        for text in ["a\r\nX: y", "a\0b", "a\x7fb"] {
            assert_eq!(BearerToken::new(text), Err(TokenError::Character));
        }
    }
}
