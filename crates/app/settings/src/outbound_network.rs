//! Outbound connections as variables configure them: proxies and trusted certificates.

use exec_registry::http::{BaseUrl, HttpClient, is_loopback};
use exec_transport::{
    connect::{HttpProxy, HttpProxyError, RequestHeaders},
    tls::TrustStore,
};
use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;

use crate::settings_source::{NotUtf8Error, VariableLookup, text};

/// How to connect to a registry and the addresses it returns.
#[derive(Clone, Debug, Default)]
pub struct OutboundNetwork {
    /// Trusted certificates.
    pub trust: TrustStore,
    /// Proxy, if any.
    pub proxy: Option<HttpProxy>,
    /// Headers of every websocket request.
    pub headers: RequestHeaders,
}

impl OutboundNetwork {
    /// Reads the variables for a registry.
    ///
    /// `SSL_CERT_FILE` replaces the host's roots, and `CODEX_CA_CERTIFICATE` is added to them.
    /// Proxy variables have their usual meaning; loopback addresses use no proxy.
    pub fn find(
        lookup: VariableLookup<'_>,
        registry: &BaseUrl,
    ) -> Result<Self, OutboundNetworkError> {
        let mut headers = RequestHeaders::default();
        for (header, variable) in AUXILIARY {
            let Some(value) = lookup(variable).filter(|value| !value.is_empty()) else {
                continue;
            };
            // These variables are set for other programs, so an invalid one is not an error.
            let added = value.to_str().map(|value| headers.add(header, value));
            if !matches!(added, Some(Ok(()))) {
                tracing::warn!(variable, "ignoring variable: not a valid header value");
            }
        }
        Ok(Self {
            trust: Self::trust(lookup),
            proxy: proxy(lookup, registry)?,
            headers,
        })
    }

    /// Reads the trusted certificates.
    pub fn trust(lookup: VariableLookup<'_>) -> TrustStore {
        let file = |name| lookup(name).filter(|value| !value.is_empty());
        let roots = file("SSL_CERT_FILE").map_or_else(TrustStore::platform, TrustStore::only);
        match file("CODEX_CA_CERTIFICATE") {
            Some(more) => roots.and(more),
            None => roots,
        }
    }

    /// Returns an HTTP client for the registry and identity services. Reads certificates; without
    /// any, a registry without TLS still works.
    pub async fn http(&self, registry: &BaseUrl) -> anyhow::Result<HttpClient> {
        match self.trust.config().await {
            Ok(config) => Ok(HttpClient::new(&config)?),
            Err(error) if registry.url().scheme() == "http" => {
                tracing::debug!(%error, "no certificate will be accepted");
                Ok(HttpClient::without_tls()?)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Caller: the network variables are invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboundNetworkError {
    /// A variable is not valid UTF-8.
    #[error(transparent)]
    Text(#[from] NotUtf8Error),
    /// The configured proxy cannot be used.
    #[error("the proxy in the environment variables cannot be used")]
    Proxy(#[source] HttpProxyError),
}

/// Headers that some rendezvous servers expect, and the variables with their values.
const AUXILIARY: [(&str, &str); 2] = [
    ("x-cluster-name", "OPENAI_CLUSTER"),
    ("x-openai-internal-caller", "DD_SERVICE"),
];

/// Finds the proxy for a registry. The registry names the websockets, so they use the same proxy.
fn proxy(
    lookup: VariableLookup<'_>,
    registry: &BaseUrl,
) -> Result<Option<HttpProxy>, OutboundNetworkError> {
    let value = |names: [&'static str; 2]| -> Result<String, OutboundNetworkError> {
        let found = names.iter().find_map(|name| text(lookup, name).transpose());
        Ok(found.transpose()?.unwrap_or_default())
    };
    let all = value(["ALL_PROXY", "all_proxy"])?;
    let own = match registry.url().scheme() {
        "https" => value(["HTTPS_PROXY", "https_proxy"])?,
        _ => value(["HTTP_PROXY", "http_proxy"])?,
    };
    let proxy_url = if own.is_empty() { all } else { own };
    if proxy_url.is_empty() || is_loopback(registry.url()) {
        return Ok(None);
    }
    let rules = Matcher::builder()
        .all(proxy_url.as_str())
        .no(value(["NO_PROXY", "no_proxy"])?)
        .build();
    let uri: Option<Uri> = registry.url().as_str().parse().ok();
    let applies = uri.is_some_and(|uri| rules.intercept(&uri).is_some());
    let proxy = applies.then(|| proxy_url.parse().map_err(OutboundNetworkError::Proxy));
    proxy.transpose()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, ffi::OsString};

    use super::*;

    fn found(
        registry: &str,
        variables: &[(&str, &str)],
    ) -> Result<OutboundNetwork, OutboundNetworkError> {
        let variables: BTreeMap<_, _> = variables.iter().copied().collect();
        let lookup = |name: &str| variables.get(name).map(OsString::from);
        OutboundNetwork::find(&lookup, &BaseUrl::parse(registry).unwrap())
    }

    fn proxy_for(registry: &str, variables: &[(&str, &str)]) -> Option<String> {
        let proxy = found(registry, variables).unwrap().proxy;
        proxy.map(|proxy| format!("{proxy:?}"))
    }

    #[test]
    fn proxy_depends_on_scheme_and_no_proxy() {
        let (http, https) = (
            ("http_proxy", "http://p:1"),
            ("HTTPS_PROXY", "http://u:s@p:2"),
        );
        let all = ("ALL_PROXY", "p:3");
        let tls = "https://hub.example";
        assert_eq!(proxy_for(tls, &[]), None);
        assert_eq!(proxy_for(tls, &[http]), None);
        assert_eq!(
            proxy_for(tls, &[http, https, all]).as_deref(),
            Some("Proxy(p:2)")
        );
        assert_eq!(proxy_for(tls, &[http, all]).as_deref(), Some("Proxy(p:3)"));
        let plain = "http://hub.example";
        assert_eq!(
            proxy_for(plain, &[http, https]).as_deref(),
            Some("Proxy(p:1)")
        );
        for exception in ["hub.example", ".example", "*", "other, example"] {
            assert_eq!(
                proxy_for(tls, &[https, ("NO_PROXY", exception)]),
                None,
                "{exception}"
            );
        }
        let other = [https, ("no_proxy", "notexample")];
        assert_eq!(proxy_for(tls, &other).as_deref(), Some("Proxy(p:2)"));
        assert_eq!(proxy_for("http://127.0.0.1:1", &[http, all]), None);
    }

    #[test]
    fn invalid_proxy_is_an_error_without_its_password() {
        for url in ["socks5://u:s3cret@p:1", "http://u:s3cret%@p:1"] {
            let error = found("https://hub.example", &[("HTTPS_PROXY", url)]).unwrap_err();
            let text = format!("{:#}", anyhow::Error::from(error));
            assert!(!text.contains("s3cret"), "{text}");
        }
        // It is not used, so it is not an error.
        assert!(found("http://127.0.0.1", &[("HTTP_PROXY", "socks5://p:1")]).is_ok());
    }

    #[test]
    fn ssl_cert_file_replaces_roots_and_codex_ca_certificate_adds_to_them() {
        let trust_text = |variables| format!("{:?}", found("https://h", variables).unwrap().trust);
        assert_eq!(trust_text(&[("SSL_CERT_FILE", "")]), trust_text(&[]));
        let only = trust_text(&[("SSL_CERT_FILE", "/a.pem")]);
        assert!(
            only.contains("roots: None") && only.contains("/a.pem"),
            "{only}"
        );
        let more = trust_text(&[("CODEX_CA_CERTIFICATE", "/b.pem")]);
        assert!(
            more.contains("roots: Platform") && more.contains("/b.pem"),
            "{more}"
        );
    }

    #[test]
    fn invalid_header_variables_are_ignored() {
        let headers = |value| {
            let found = found(
                "https://h",
                &[("DD_SERVICE", value), ("OPENAI_CLUSTER", "c")],
            );
            format!("{:?}", found.unwrap().headers)
        };
        assert!(headers("svc").contains("x-openai-internal-caller"));
        assert!(!headers("a\nb").contains("x-openai-internal-caller"));
        assert!(headers("a\nb").contains("x-cluster-name"));
    }
}
