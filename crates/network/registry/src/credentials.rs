//! Who is asking: the headers that a registry knows its callers by.
//!
//! Headers are made anew for each request, because secrets rotate and assertions age. Each way says
//! how far its secret may travel. No text shows a secret. Not here: where secrets are kept (the
//! product crate), signatures over requests (`sigv4`).

mod access_token;
mod agent_identity;
mod credential_pipe;
mod sign_in;
mod stdin_token;

pub use self::{
    access_token::{AccessToken, AccessTokenError},
    agent_identity::{AgentIdentity, AgentIdentityError, AgentIdentitySettings},
    credential_pipe::{CredentialPipe, PipeEnd, PipeError},
    sign_in::{SignIn, SignInError},
    stdin_token::{ChatGptToken, RegistrationBearer, StdinTokenError},
};

use std::fmt;

use futures_util::future::{BoxFuture, FutureExt, ready};
use http::{HeaderMap, HeaderValue, Method, header};
use url::{Host, Url};

use crate::http::is_near;

/// Makes the headers that authenticate requests.
pub trait Credentials: fmt::Debug + Send + Sync {
    /// Makes the headers for the next request. Values are marked as sensitive.
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>>;

    /// Makes the headers for one request, where they depend on it.
    fn headers_for<'a>(
        &'a self,
        request: Outgoing<'a>,
    ) -> BoxFuture<'a, Result<HeaderMap, CredentialError>> {
        let _: Outgoing<'a> = request;
        self.headers()
    }

    /// Tells where these headers may be sent.
    fn reach(&self) -> Reach;

    /// Tells whether errors may show what a registry answered.
    fn bodies(&self) -> Bodies {
        Bodies::Shown
    }
}

/// A request that is about to be sent, without the headers that authenticate it. Its content type is
/// `application/json` if it has a body.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// The method.
    pub method: &'a Method,
    /// The whole URL.
    pub url: &'a Url,
    /// The body; empty if there is none.
    pub body: &'a [u8],
}

// Bodies hold authorizations.
impl fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("method", self.method)
            .field("url", &self.url.as_str())
            .finish_non_exhaustive()
    }
}

/// Whether errors show the bodies of answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bodies {
    /// They do.
    Shown,
    /// They do not: what is answered may repeat the secret of somebody who cannot see our errors.
    Hidden,
}

/// Why a request cannot be authenticated. No secret is repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// Caller: the secret is not for this registry.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// Caller: the token has expired, and no newer one has come.
    #[error("executor credential has expired")]
    Expired,
    /// Caller: the stored sign-in cannot be used.
    #[error("stored sign-in cannot be used")]
    SignIn(#[from] SignInError),
    /// Host: nothing could be signed.
    #[error("request cannot be signed: {0}")]
    Sign(String),
}

/// Domains whose hosts may get an API key of their own vendor.
const VENDOR: &[&str] = &["openai.com", "openai.org"];

/// Where a secret may be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reach {
    /// Wherever a caller says, even in the clear.
    Anywhere,
    /// Where nobody on the way can read it: `https`, or this machine.
    Private,
    /// By `https` only, also on this machine.
    Https,
    /// To hosts of the vendor by `https`, or to this machine.
    Vendor,
}

impl Reach {
    /// Checks a URL.
    ///
    /// # Errors
    /// When the secret may not go there.
    pub fn admit(self, url: &Url) -> Result<(), ReachError> {
        let https = url.scheme() == "https";
        let near = is_near(url);
        match self {
            Self::Anywhere => Ok(()),
            Self::Private if https || near => Ok(()),
            Self::Private => Err(ReachError::InTheClear(place(url))),
            Self::Https if https => Ok(()),
            Self::Https => Err(ReachError::NotHttps(place(url))),
            Self::Vendor if near || (https && is_vendor(url)) => Ok(()),
            Self::Vendor => Err(ReachError::NotTheVendor(place(url))),
        }
    }
}

fn is_vendor(url: &Url) -> bool {
    let Some(Host::Domain(name)) = url.host() else {
        return false;
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    VENDOR.iter().any(|domain| {
        name.strip_suffix(domain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

fn place(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// Caller: the secret is not sent there. No request was made.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReachError {
    /// Others could read it on its way.
    #[error("a token is sent over https:// or to this machine only, not to `{0}`")]
    InTheClear(String),
    /// It goes over TLS only, even on this machine.
    #[error("a ChatGPT token is sent over https:// only, not to `{0}`")]
    NotHttps(String),
    /// It is nobody else's business.
    #[error(
        "an API key is sent to its vendor over https:// or to this machine only, not to `{0}`; \
         use a token of the registry"
    )]
    NotTheVendor(String),
}

/// Longest token: with the other headers it still fits what servers take.
const MAX_TOKEN_BYTES: usize = 16 << 10;

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
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong);
        }
        let mut value =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| TokenError::Character)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// Returns the headers that show the token.
    fn headers(&self) -> HeaderMap {
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
    #[error("token is longer than {MAX_TOKEN_BYTES} bytes")]
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

    fn token(&self) -> &Token {
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

    fn add_to(&self, headers: &mut HeaderMap) {
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
    fn add_to(self, headers: &mut HeaderMap) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(reach: Reach, url: &str) -> bool {
        reach.admit(&Url::parse(url).unwrap()).is_ok()
    }

    #[test]
    fn each_secret_keeps_to_its_places() {
        // URL, private, vendor
        let table = [
            ("https://openai.com", true, true),
            ("https://api.openai.com/x", true, true),
            ("https://a.b.OPENAI.org.", true, true),
            ("http://api.openai.com", false, false),
            ("https://notopenai.com", true, false),
            ("https://openai.com.test", true, false),
            ("https://a.test", true, false),
            ("http://a.test", false, false),
            ("http://localhost:1", true, true),
            ("https://127.0.0.1:1", true, true),
            ("http://[::1]", true, true),
            ("http://10.0.0.1", false, false),
        ];
        for (url, private, vendor) in table {
            assert!(admitted(Reach::Anywhere, url), "{url}");
            assert_eq!(admitted(Reach::Private, url), private, "{url}");
            assert_eq!(admitted(Reach::Vendor, url), vendor, "{url}");
            assert_eq!(
                admitted(Reach::Https, url),
                url.starts_with("https:"),
                "{url}"
            );
        }
    }

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
        let long = "x".repeat(MAX_TOKEN_BYTES + 1);
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
