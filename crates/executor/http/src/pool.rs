//! The connections, and the ways to the outside: TLS and proxies.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    sync::Arc,
    time::Duration,
};

use exec_env::http::HttpError;
use reqwest::{
    Client, NoProxy, Proxy,
    redirect::{Action, Attempt, Policy},
};
use tokio_rustls::rustls::{ClientConfig, crypto::aws_lc_rs};

use crate::{deadline::failed, roots};

/// Redirections that are followed before the request fails: as the stock server, and most others.
const MAX_REDIRECTS: usize = 10;
/// Connections to one host that are kept for the next request, and for how long.
const IDLE_PER_HOST: usize = 4;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Clients for every way to treat redirections: the library ties that to a client.
#[derive(Debug)]
pub(crate) struct Pool {
    follow: Client,
    stay: Client,
    stop: Client,
}

/// How far redirections are followed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Redirections {
    /// Wherever they lead.
    Follow,
    /// As long as they lead to the same host and port; another one is an error.
    Stay,
    /// Not at all.
    Stop,
}

impl Pool {
    /// Reads the certificates that are trusted, and takes the proxies from the environment. Blocks.
    pub(crate) fn new(env: &BTreeMap<OsString, OsString>) -> Result<Self, HttpError> {
        let tls = tls(env)?;
        let build = |policy| {
            // Proxies of the process's own environment are not asked for.
            let mut builder = Client::builder()
                .no_proxy()
                .redirect(policy)
                // A URL may hold a secret, which is none of the next host's business.
                .referer(false)
                .pool_max_idle_per_host(IDLE_PER_HOST)
                .pool_idle_timeout(IDLE_TIMEOUT)
                .tls_backend_preconfigured(tls.clone());
            for proxy in proxies(env)? {
                builder = builder.proxy(proxy);
            }
            builder.build().map_err(failed)
        };
        Ok(Self {
            // Across hosts it drops `authorization`, `cookie` and the like.
            follow: build(Policy::limited(MAX_REDIRECTS))?,
            stay: build(Policy::custom(stay))?,
            stop: build(Policy::none())?,
        })
    }

    pub(crate) fn client(&self, redirections: Redirections) -> &Client {
        match redirections {
            Redirections::Follow => &self.follow,
            Redirections::Stay => &self.stay,
            Redirections::Stop => &self.stop,
        }
    }
}

fn stay(attempt: Attempt<'_>) -> Action {
    let elsewhere = attempt
        .previous()
        .first()
        .is_some_and(|first| first.origin() != attempt.url().origin());
    if elsewhere {
        attempt.error("it would carry a variable of the host to another one")
    } else if attempt.previous().len() > MAX_REDIRECTS {
        attempt.error("too many redirects")
    } else {
        attempt.follow()
    }
}

fn tls(env: &BTreeMap<OsString, OsString>) -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| HttpError::Host(error.to_string()))?
        .with_root_certificates(roots::find(env)?)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Makes a proxy for one kind of URL.
type Make = fn(&str) -> reqwest::Result<Proxy>;

/// Returns the proxies that the environment names. One that cannot be used is an error: to go around
/// it silently would be worse.
fn proxies(env: &BTreeMap<OsString, OsString>) -> Result<Vec<Proxy>, HttpError> {
    let none = variable(env, "NO_PROXY").and_then(|(_, list)| NoProxy::from_string(list));
    let kinds: [(&str, Make); 3] = [
        ("HTTP_PROXY", |url| Proxy::http(url)),
        ("HTTPS_PROXY", |url| Proxy::https(url)),
        ("ALL_PROXY", |url| Proxy::all(url)),
    ];
    let mut proxies = Vec::new();
    for (name, make) in kinds {
        if let Some((name, url)) = variable(env, name) {
            // The value is not shown: it may hold a password.
            let proxy = make(url).map_err(|_| {
                HttpError::Host(format!("`{name}` of the host is not the URL of a proxy"))
            })?;
            proxies.push(proxy.no_proxy(none.clone()));
        }
    }
    Ok(proxies)
}

/// Finds a variable by its name in upper or lower case. One that is empty is not set.
fn variable<'a>(env: &'a BTreeMap<OsString, OsString>, name: &str) -> Option<(String, &'a str)> {
    [name.to_owned(), name.to_ascii_lowercase()]
        .into_iter()
        .find_map(|name| {
            let value = env.get(OsStr::new(&name))?.to_str()?.trim();
            (!value.is_empty()).then_some((name, value))
        })
}
