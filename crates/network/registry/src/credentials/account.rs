//! Accounts that requests are made for.

use http::{HeaderMap, HeaderValue};

use super::TokenError;

/// The header that names the account.
const ACCOUNT_HEADER: &str = "chatgpt-account-id";
/// The header that leads to where accounts of that kind are served.
const FEDRAMP_HEADER: &str = "x-openai-fedramp";

/// The account that requests are made for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AccountId(HeaderValue);

impl AccountId {
    /// Takes an id, without the blanks around it.
    ///
    /// # Errors
    /// When nothing is left, or no header can carry it.
    pub fn new(id: &str) -> Result<Self, TokenError> {
        let id = id.trim();
        if id.is_empty() {
            return Err(TokenError::Empty);
        }
        let value = HeaderValue::from_str(id).map_err(|_| TokenError::Character)?;
        Ok(Self(value))
    }

    pub(super) fn add_to(&self, headers: &mut HeaderMap) {
        headers.insert(ACCOUNT_HEADER, self.0.clone());
    }
}

/// Whether an account is served by the vendor's `FedRAMP` hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fedramp {
    /// It is.
    Yes,
    /// It is not.
    No,
}

impl Fedramp {
    pub(super) fn add_to(self, headers: &mut HeaderMap) {
        if self == Self::Yes {
            headers.insert(FEDRAMP_HEADER, HeaderValue::from_static("true"));
        }
    }
}

impl From<bool> for Fedramp {
    fn from(fedramp: bool) -> Self {
        if fedramp { Self::Yes } else { Self::No }
    }
}
