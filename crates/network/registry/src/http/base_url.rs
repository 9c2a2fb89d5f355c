//! Base URL of a registry or issuer.

use std::fmt;

use url::{Host, Url};

use crate::api::RegistryEnvironmentId;

/// The URL that API paths are appended to, without surrounding whitespace and trailing slashes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BaseUrl {
    text: String,
    parsed: Url,
}

impl BaseUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// Returns an error if it is not an HTTP URL or has more than a path.
    pub fn parse(text: &str) -> Result<Self, BaseUrlError> {
        let text = text.trim().trim_end_matches('/');
        if text.is_empty() {
            return Err(BaseUrlError::Empty);
        }
        let parsed = Url::parse(text).map_err(BaseUrlError::Malformed)?;
        if !matches!(parsed.scheme(), "http" | "https") || parsed.host().is_none() {
            return Err(BaseUrlError::Scheme(parsed.scheme().to_owned()));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(BaseUrlError::UserInfo);
        }
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(BaseUrlError::Query);
        }
        Ok(Self {
            text: text.to_owned(),
            parsed,
        })
    }

    /// Returns the URL of an operation on an environment.
    pub(crate) fn operation(
        &self,
        environment: &RegistryEnvironmentId,
        operation: &str,
    ) -> Result<Url, url::ParseError> {
        self.join(&format!("cloud/environment/{environment}/{operation}"))
    }

    /// Appends a path textually.
    pub(crate) fn join(&self, path: &str) -> Result<Url, url::ParseError> {
        Url::parse(&format!("{}/{path}", self.text))
    }

    /// Returns the URL.
    pub fn url(&self) -> &Url {
        &self.parsed
    }

    /// Returns whether requests are encrypted or stay on this host.
    pub fn is_private(&self) -> bool {
        self.parsed.scheme() == "https" || is_loopback(&self.parsed)
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns whether a URL names this host: `localhost` or a literal loopback address.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.to_canonical().is_loopback(),
        None => false,
    }
}

/// Caller: the text is not a valid base URL.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BaseUrlError {
    /// The text is empty.
    #[error("URL is empty")]
    Empty,
    /// The text is not a URL.
    #[error("URL is malformed")]
    Malformed(#[source] url::ParseError),
    /// The scheme is not HTTP.
    #[error("URL begins with http:// or https://, not with `{0}:`")]
    Scheme(String),
    /// User names and passwords in URLs are not supported.
    #[error("URL holds a user name or a password")]
    UserInfo,
    /// Paths are appended, so a query or fragment is not allowed.
    #[error("URL has a query or a fragment")]
    Query,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(base: &str, environment: &str) -> String {
        let environment = RegistryEnvironmentId::new(environment).unwrap();
        let base = BaseUrl::parse(base).unwrap();
        base.operation(&environment, "register").unwrap().into()
    }

    #[test]
    fn paths_are_appended_as_text() {
        let all = [
            (
                " https://a.test/ \n",
                "env-1",
                "https://a.test/cloud/environment/env-1/register",
            ),
            (
                "http://a.test:81/x//",
                "e",
                "http://a.test:81/x/cloud/environment/e/register",
            ),
            (
                "https://a.test",
                "a/b c",
                "https://a.test/cloud/environment/a/b%20c/register",
            ),
        ];
        for (base, environment, expected) in all {
            assert_eq!(operation(base, environment), expected);
        }
    }

    #[test]
    fn invalid_base_urls_are_rejected() {
        use BaseUrlError as Error;
        assert_eq!(BaseUrl::parse(" / "), Err(Error::Empty));
        assert!(matches!(BaseUrl::parse("a.test"), Err(Error::Malformed(_))));
        assert_eq!(
            BaseUrl::parse("ws://a.test"),
            Err(Error::Scheme("ws".to_owned()))
        );
        assert_eq!(BaseUrl::parse("https://me:pw@a.test"), Err(Error::UserInfo));
        assert_eq!(BaseUrl::parse("https://a.test/?a"), Err(Error::Query));
        assert_eq!(BaseUrl::parse("https://a.test#a"), Err(Error::Query));
    }

    #[test]
    fn only_loopback_literals_and_localhost_are_local() {
        let near = |text| is_loopback(&Url::parse(text).unwrap());
        for text in [
            "http://localhost:1",
            "http://LOCALHOST",
            "http://127.9.0.1",
            "http://[::1]",
            "http://[::ffff:127.0.0.1]",
        ] {
            assert!(near(text), "{text}");
        }
        for text in [
            "http://localhost.test",
            "http://10.0.0.1",
            "http://[::2]",
            "http://127.0.0.1.test",
        ] {
            assert!(!near(text), "{text}");
        }
    }
}
