//! Tokens that are sent as they are.

use std::fmt;

use futures_util::future::{BoxFuture, FutureExt, ready};
use http::{HeaderMap, HeaderValue, header};

use super::{AccountId, CredentialError, Credentials, Reach};

/// Longest token: with the other headers it still fits what servers take.
const MAX_BYTES: usize = 16 << 10;

/// A token for `Authorization: Bearer …`. `Debug` hides it.
#[derive(Clone, Eq, PartialEq)]
pub struct Token(HeaderValue);

impl Token {
    /// Takes a token, without the blanks around it.
    ///
    /// # Errors
    /// When nothing is left, or no header can carry it.
    pub fn new(token: &str) -> Result<Self, TokenError> {
        let token = token.trim();
        if token.is_empty() {
            return Err(TokenError::Empty);
        }
        if token.len() > MAX_BYTES {
            return Err(TokenError::TooLong);
        }
        let mut value =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| TokenError::Character)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// Returns the headers that show the token.
    pub(super) fn headers(&self) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, self.0.clone())])
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Caller: the text is no token. It is not repeated.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// There is nothing in it.
    #[error("token is empty")]
    Empty,
    /// No server takes so much.
    #[error("token is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// It holds a character that a header cannot carry.
    #[error("token holds a control character")]
    Character,
}

/// An API key. It goes to its vendor and to this machine, and nowhere else.
#[derive(Clone, Debug)]
pub struct ApiKey(Token);

impl ApiKey {
    /// Takes a key.
    pub fn new(key: Token) -> Self {
        Self(key)
    }

    pub(super) fn token(&self) -> &Token {
        &self.0
    }
}

impl Credentials for ApiKey {
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>> {
        ready(Ok(self.0.headers())).boxed()
    }

    fn reach(&self) -> Reach {
        Reach::Vendor
    }
}

/// A token of the registry itself, such as one of a hub. It goes wherever nobody can read it.
#[derive(Clone, Debug)]
pub struct Bearer(Token);

impl Bearer {
    /// Takes a token.
    pub fn new(token: Token) -> Self {
        Self(token)
    }
}

impl Credentials for Bearer {
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>> {
        ready(Ok(self.0.headers())).boxed()
    }

    fn reach(&self) -> Reach {
        Reach::Private
    }
}

/// The token of a harness, and the account it works for. Unlike an executor, a harness is told where
/// to send it together with it, and sends it there.
#[derive(Clone, Debug)]
pub struct HarnessToken {
    token: Token,
    account: Option<AccountId>,
}

impl HarnessToken {
    /// Takes a token and an account.
    pub fn new(token: Token, account: Option<AccountId>) -> Self {
        Self { token, account }
    }
}

impl Credentials for HarnessToken {
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>> {
        let mut headers = self.token.headers();
        if let Some(account) = &self.account {
            account.add_to(&mut headers);
        }
        ready(Ok(headers)).boxed()
    }

    fn reach(&self) -> Reach {
        Reach::Anywhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_trimmed_and_hidden() {
        let token = Token::new(" s3cret\n").unwrap();
        assert_eq!(token.headers()[header::AUTHORIZATION], "Bearer s3cret");
        assert!(token.headers()[header::AUTHORIZATION].is_sensitive());
        let key = ApiKey::new(token.clone());
        let harness = HarnessToken::new(token.clone(), None);
        for shown in [
            format!("{token:?}"),
            format!("{:?}", token.headers()),
            format!("{key:?}"),
            format!("{:?}", Bearer::new(token)),
            format!("{harness:?}"),
        ] {
            assert!(!shown.contains("s3cret"), "{shown}");
        }
    }

    #[test]
    fn what_no_header_carries_is_no_token() {
        assert_eq!(Token::new(" \n"), Err(TokenError::Empty));
        for text in ["a\r\nX: y", "a\0b", "a\x7fb"] {
            assert_eq!(Token::new(text), Err(TokenError::Character), "{text:?}");
        }
        let long = "x".repeat(MAX_BYTES + 1);
        assert_eq!(Token::new(&long), Err(TokenError::TooLong));
    }

    #[tokio::test]
    async fn a_harness_may_name_its_account() {
        let account = AccountId::new("acc-1").unwrap();
        let harness = HarnessToken::new(Token::new("t").unwrap(), Some(account));
        let headers = harness.headers().await.unwrap();
        assert_eq!(headers["chatgpt-account-id"], "acc-1");
        assert_eq!(headers.len(), 2);
    }
}
