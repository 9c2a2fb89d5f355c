//! Credentials: the headers that authenticate requests to a registry.
//!
//! Headers are made for each request, because secrets rotate and assertions expire. Each kind of
//! credentials declares where its secret may be sent. Errors and `Debug` never contain a secret.
//! Elsewhere: where secrets are stored (the product crate), request signatures (`api::sigv4`).

mod access_token;
mod agent_identity;
mod credential_pipe;
mod sign_in;
mod stdin_token;

pub use self::{
    access_token::AccessTokenError,
    agent_identity::{AgentIdentity, AgentIdentityError, AgentIdentitySettings},
    credential_pipe::{CredentialPipe, PipeEnd, PipeError},
    sign_in::{SignIn, SignInError},
    stdin_token::StdinTokenError,
};

use std::fmt;

use futures_util::future::{BoxFuture, FutureExt, ready};
use http::{HeaderMap, HeaderValue, Method, header};
use url::{Host, Url};

use crate::http::is_loopback;

/// Produces the headers that authenticate requests.
pub trait Credentials: fmt::Debug + Send + Sync {
    /// Returns the headers for the next request. Their values are marked as sensitive.
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>>;

    /// Returns the headers for a specific request, for credentials that depend on it.
    fn headers_for<'a>(
        &'a self,
        request: OutgoingRequest<'a>,
    ) -> BoxFuture<'a, Result<HeaderMap, CredentialError>> {
        let _: OutgoingRequest<'a> = request;
        self.headers()
    }

    /// Returns where these headers may be sent.
    fn secret_scope(&self) -> SecretScope;

    /// Returns whether errors may include response bodies of the registry.
    fn body_disclosure(&self) -> BodyDisclosure {
        BodyDisclosure::Shown
    }
}

/// A request about to be sent, without its authentication headers. Its content type is
/// `application/json` if it has a body.
#[derive(Clone, Copy)]
pub struct OutgoingRequest<'a> {
    /// The method.
    pub method: &'a Method,
    /// The whole URL.
    pub url: &'a Url,
    /// The body, or empty.
    pub body: &'a [u8],
}

// Bodies contain authorizations, so `Debug` omits them.
impl fmt::Debug for OutgoingRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingRequest")
            .field("method", self.method)
            .field("url", &self.url.as_str())
            .finish_non_exhaustive()
    }
}

/// Whether errors include response bodies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BodyDisclosure {
    /// Errors include them.
    Shown,
    /// Errors omit them: a response may repeat a secret that readers of our errors must not see.
    Hidden,
}

/// Why a request cannot be authenticated. The error never contains a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// Caller: the secret must not be sent to this registry.
    #[error(transparent)]
    SecretScope(#[from] SecretScopeError),
    /// Caller: the token has expired and has not been replaced.
    #[error("executor credential has expired")]
    Expired,
    /// Caller: the stored sign-in cannot be used.
    #[error("stored sign-in cannot be used")]
    SignIn(#[from] SignInError),
    /// Host: signing failed.
    #[error("request cannot be signed: {0}")]
    Sign(String),
}

/// Domains that may receive an API key of their vendor.
const VENDOR: &[&str] = &["openai.com", "openai.org"];

/// Where a secret may be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SecretScope {
    /// To any URL, even without TLS.
    Anywhere,
    /// Over `https`, or to a loopback address.
    Private,
    /// Over `https` only, even to a loopback address.
    Https,
    /// To hosts of the vendor over `https`, or to a loopback address.
    Vendor,
}

impl SecretScope {
    /// Checks whether the secret may be sent to a URL.
    ///
    /// # Errors
    /// Returns an error if it may not.
    pub fn admit(self, url: &Url) -> Result<(), SecretScopeError> {
        let https = url.scheme() == "https";
        let is_local = is_loopback(url);
        match self {
            Self::Anywhere => Ok(()),
            Self::Private if https || is_local => Ok(()),
            Self::Private => Err(SecretScopeError::InTheClear(origin(url))),
            Self::Https if https => Ok(()),
            Self::Https => Err(SecretScopeError::NotHttps(origin(url))),
            Self::Vendor if is_local || (https && is_vendor(url)) => Ok(()),
            Self::Vendor => Err(SecretScopeError::NotTheVendor(origin(url))),
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

fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// Caller: the secret must not be sent to this URL. No request was made.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretScopeError {
    /// The connection would not be encrypted.
    #[error("a token is sent over https:// or to this machine only, not to `{0}`")]
    InTheClear(String),
    /// The secret requires TLS, even on a loopback address.
    #[error("a ChatGPT token is sent over https:// only, not to `{0}`")]
    NotHttps(String),
    /// The host does not belong to the vendor.
    #[error(
        "an API key is sent to its vendor over https:// or to this machine only, not to `{0}`; \
         use a token of the registry"
    )]
    NotTheVendor(String),
}

/// Longest token, so that it fits into the header limits of common servers.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// A token for `Authorization: Bearer …`. `Debug` redacts it.
#[derive(Clone, Eq, PartialEq)]
pub struct RegistryToken(HeaderValue);

impl RegistryToken {
    /// Validates a token after trimming whitespace.
    ///
    /// # Errors
    /// Returns an error if the token is empty, too long, or not allowed in a header.
    pub fn new(token: &str) -> Result<Self, RegistryTokenError> {
        let token = token.trim();
        if token.is_empty() {
            return Err(RegistryTokenError::Empty);
        }
        if token.len() > MAX_TOKEN_BYTES {
            return Err(RegistryTokenError::TooLong);
        }
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| RegistryTokenError::Character)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// Returns the `Authorization` header.
    pub fn headers(&self) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, self.0.clone())])
    }
}

impl fmt::Debug for RegistryToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Caller: the text is not a valid token. The error does not repeat it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryTokenError {
    /// The token is empty.
    #[error("token is empty")]
    Empty,
    /// The token is too long.
    #[error("token is longer than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    /// The token contains a control character.
    #[error("token holds a control character")]
    Character,
}

/// Credentials whose headers are the same for every request.
#[derive(Clone, Debug)]
pub struct FixedCredentials {
    headers: HeaderMap,
    secret_scope: SecretScope,
    body_disclosure: BodyDisclosure,
}

impl FixedCredentials {
    /// Presents an API key. It is sent only to its vendor and to loopback addresses.
    pub fn api_key(key: &RegistryToken) -> Self {
        Self::new(key.headers(), SecretScope::Vendor)
    }

    /// Presents a token of the registry itself, such as a hub token. It is sent over `https` or to
    /// loopback addresses.
    pub fn registry_token(token: &RegistryToken) -> Self {
        Self::new(token.headers(), SecretScope::Private)
    }

    /// Presents a harness token and the account it is used for. It is sent to any registry, because
    /// a harness receives the registry's URL and the token together.
    pub fn harness_token(token: &RegistryToken, account: Option<&AccountId>) -> Self {
        let mut headers = token.headers();
        if let Some(account) = account {
            account.add_to(&mut headers);
        }
        Self::new(headers, SecretScope::Anywhere)
    }

    fn new(headers: HeaderMap, secret_scope: SecretScope) -> Self {
        Self {
            headers,
            secret_scope,
            body_disclosure: BodyDisclosure::Shown,
        }
    }

    /// Keeps response bodies out of errors.
    fn hide_bodies(self) -> Self {
        Self {
            body_disclosure: BodyDisclosure::Hidden,
            ..self
        }
    }
}

impl Credentials for FixedCredentials {
    fn headers(&self) -> BoxFuture<'_, Result<HeaderMap, CredentialError>> {
        ready(Ok(self.headers.clone())).boxed()
    }

    fn secret_scope(&self) -> SecretScope {
        self.secret_scope
    }

    fn body_disclosure(&self) -> BodyDisclosure {
        self.body_disclosure
    }
}

/// Header with the account id.
const ACCOUNT_HEADER: &str = "chatgpt-account-id";
/// Header that routes requests to the FedRAMP hosts.
const FEDRAMP_HEADER: &str = "x-openai-fedramp";

/// The account that requests are made for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AccountId(HeaderValue);

impl AccountId {
    /// Validates an id after trimming whitespace.
    ///
    /// # Errors
    /// Returns an error if the id is empty or not allowed in a header.
    pub fn new(id: &str) -> Result<Self, RegistryTokenError> {
        let id = id.trim();
        if id.is_empty() {
            return Err(RegistryTokenError::Empty);
        }
        let value = HeaderValue::from_str(id).map_err(|_| RegistryTokenError::Character)?;
        Ok(Self(value))
    }

    fn add_to(&self, headers: &mut HeaderMap) {
        headers.insert(ACCOUNT_HEADER, self.0.clone());
    }
}

/// Routes requests to the vendor's FedRAMP hosts.
fn add_fedramp(headers: &mut HeaderMap) {
    headers.insert(FEDRAMP_HEADER, HeaderValue::from_static("true"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(scope: SecretScope, url: &str) -> bool {
        scope.admit(&Url::parse(url).unwrap()).is_ok()
    }

    #[test]
    fn each_scope_permits_only_its_urls() {
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
            assert!(admitted(SecretScope::Anywhere, url), "{url}");
            assert_eq!(admitted(SecretScope::Private, url), private, "{url}");
            assert_eq!(admitted(SecretScope::Vendor, url), vendor, "{url}");
            assert_eq!(
                admitted(SecretScope::Https, url),
                url.starts_with("https:"),
                "{url}"
            );
        }
    }

    #[test]
    fn token_is_trimmed_and_redacted() {
        let token = RegistryToken::new(" s3cret\n").unwrap();
        assert_eq!(token.headers()[header::AUTHORIZATION], "Bearer s3cret");
        assert!(token.headers()[header::AUTHORIZATION].is_sensitive());
        let key = FixedCredentials::api_key(&token);
        let harness = FixedCredentials::harness_token(&token, None);
        for shown in [
            format!("{token:?}"),
            format!("{:?}", token.headers()),
            format!("{key:?}"),
            format!("{:?}", FixedCredentials::registry_token(&token)),
            format!("{harness:?}"),
        ] {
            assert!(!shown.contains("s3cret"), "{shown}");
        }
    }

    #[test]
    fn invalid_header_values_are_rejected_as_tokens() {
        assert_eq!(RegistryToken::new(" \n"), Err(RegistryTokenError::Empty));
        for text in ["a\r\nX: y", "a\0b", "a\x7fb"] {
            assert_eq!(
                RegistryToken::new(text),
                Err(RegistryTokenError::Character),
                "{text:?}"
            );
        }
        let long = "x".repeat(MAX_TOKEN_BYTES + 1);
        assert_eq!(RegistryToken::new(&long), Err(RegistryTokenError::TooLong));
    }

    #[tokio::test]
    async fn harness_headers_include_the_account() {
        let account = AccountId::new("acc-1").unwrap();
        let token = RegistryToken::new("t").unwrap();
        let harness = FixedCredentials::harness_token(&token, Some(&account));
        let headers = harness.headers().await.unwrap();
        assert_eq!(headers["chatgpt-account-id"], "acc-1");
        assert_eq!(headers.len(), 2);
    }
}
