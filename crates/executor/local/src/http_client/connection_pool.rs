//! The connections, and the ways to the outside: TLS and proxies.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use exec_env::http::HttpError;
use reqwest::{
    Client, NoProxy, Proxy,
    redirect::{Action, Attempt, Policy},
};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, pem::PemObject},
};

use super::request_error;

/// Redirections that are followed before the request fails: as the stock server, and most others.
const MAX_REDIRECTS: usize = 10;
/// Connections to one host that are kept for the next request, and for how long.
const IDLE_PER_HOST: usize = 4;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Where systems keep the roots they trust. The first file that can be read counts. No library looks
/// for them, because those read environment variables.
const PLATFORM_ROOTS: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/ssl/cert.pem",
    "/opt/etc/ssl/certs/ca-certificates.crt",
];
const CERT_FILE: &str = "SSL_CERT_FILE";
const EXTRA_CA_FILE: &str = "CODEX_CA_CERTIFICATE";
/// Files of `SSL_CERT_DIR` that are looked at: a directory of roots has a few hundred.
const MAX_CERT_FILES: usize = 4096;

/// Clients for every way to treat redirections: the library ties that to a client.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    follow: Client,
    same_origin: Client,
    stop: Client,
}

/// How far redirections are followed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RedirectMode {
    /// Wherever they lead.
    Follow,
    /// As long as they lead to the same host and port; another one is an error.
    SameOrigin,
    /// Not at all.
    Stop,
}

impl ConnectionPool {
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
            builder.build().map_err(request_error)
        };
        Ok(Self {
            // Across hosts it drops `authorization`, `cookie` and the like.
            follow: build(Policy::limited(MAX_REDIRECTS))?,
            same_origin: build(Policy::custom(same_origin))?,
            stop: build(Policy::none())?,
        })
    }

    pub(crate) fn client(&self, redirect_mode: RedirectMode) -> &Client {
        match redirect_mode {
            RedirectMode::Follow => &self.follow,
            RedirectMode::SameOrigin => &self.same_origin,
            RedirectMode::Stop => &self.stop,
        }
    }
}

fn same_origin(attempt: Attempt<'_>) -> Action {
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
        .with_root_certificates(load_roots(env)?)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Makes a proxy for one kind of URL.
type ProxyConstructor = fn(&str) -> reqwest::Result<Proxy>;

/// Returns the proxies that the environment names. One that cannot be used is an error: to go around
/// it silently would be worse.
fn proxies(env: &BTreeMap<OsString, OsString>) -> Result<Vec<Proxy>, HttpError> {
    let none = proxy_variable(env, "NO_PROXY").and_then(|(_, list)| NoProxy::from_string(list));
    let kinds: [(&str, ProxyConstructor); 3] = [
        ("HTTP_PROXY", |url| Proxy::http(url)),
        ("HTTPS_PROXY", |url| Proxy::https(url)),
        ("ALL_PROXY", |url| Proxy::all(url)),
    ];
    let mut proxies = Vec::new();
    for (name, make) in kinds {
        if let Some((name, url)) = proxy_variable(env, name) {
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
fn proxy_variable<'a>(
    env: &'a BTreeMap<OsString, OsString>,
    name: &str,
) -> Option<(String, &'a str)> {
    [name.to_owned(), name.to_ascii_lowercase()]
        .into_iter()
        .find_map(|name| {
            let value = env.get(OsStr::new(&name))?.to_str()?.trim();
            (!value.is_empty()).then_some((name, value))
        })
}

/// Reads the roots. `SSL_CERT_FILE` and `SSL_CERT_DIR` take the place of the machine's, and
/// `CODEX_CA_CERTIFICATE` is trusted beside them. Without any, `http` still works, and every
/// certificate is refused.
///
/// # Errors
/// Fails if `CODEX_CA_CERTIFICATE`, or else `SSL_CERT_FILE`, names a file without certificates.
fn load_roots(env: &BTreeMap<OsString, OsString>) -> Result<RootCertStore, HttpError> {
    let mut store = RootCertStore::empty();
    let named = |name: &str| env.get(OsStr::new(name)).filter(|path| !path.is_empty());
    let (file, directories) = (named(CERT_FILE), named("SSL_CERT_DIR"));
    let private = named(EXTRA_CA_FILE);
    if let Some(private) = private {
        require_certificates(&mut store, EXTRA_CA_FILE, Path::new(private))?;
    }
    if file.is_none() && directories.is_none() {
        PLATFORM_ROOTS
            .iter()
            .any(|file| add_certificates(&mut store, Path::new(file)));
        return Ok(store);
    }
    if let Some(file) = file {
        if private.is_none() {
            require_certificates(&mut store, CERT_FILE, Path::new(file))?;
        } else {
            add_certificates(&mut store, Path::new(file));
        }
    }
    for directory in directories.into_iter().flat_map(std::env::split_paths) {
        for file in list_files(&directory) {
            add_certificates(&mut store, &file);
        }
    }
    Ok(store)
}

/// Adds the certificates of the file that a variable names, of which there must be one.
fn require_certificates(
    store: &mut RootCertStore,
    variable: &str,
    file: &Path,
) -> Result<(), HttpError> {
    let request_error = |why: &dyn fmt::Display| {
        let file = file.display();
        HttpError::Host(format!(
            "cannot read CA certificates from `{file}`, which {variable} names: {why}; name a PEM \
             file with at least one certificate, or unset the variable"
        ))
    };
    std::fs::File::open(file).map_err(|error| request_error(&error))?;
    if add_certificates(store, file) {
        Ok(())
    } else {
        Err(request_error(&"no certificate in it"))
    }
}

/// Adds the certificates of a file. Tells whether there was any that can be used.
fn add_certificates(store: &mut RootCertStore, file: &Path) -> bool {
    let Ok(certificates) = CertificateDer::pem_file_iter(file) else {
        return false;
    };
    let (added, _) = store.add_parsable_certificates(certificates.filter_map(Result::ok));
    added > 0
}

fn list_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let files = entries.take(MAX_CERT_FILES).filter_map(Result::ok);
    files.map(|entry| entry.path()).collect()
}
