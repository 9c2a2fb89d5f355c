//! How far a secret may travel.

use url::{Host, Url};

use crate::http::is_near;

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
}
