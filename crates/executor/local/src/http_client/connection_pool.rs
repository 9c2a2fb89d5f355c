//! Connection pool with TLS roots, proxies and redirect policies.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use exec_env::http::HttpError;
use exec_wire::http::CA_BUNDLES;
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

/// Maximum number of redirects, as in the stock server.
const MAX_REDIRECTS: usize = 10;
/// Idle connections kept per host, and for how long.
const IDLE_PER_HOST: usize = 4;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

const CERT_FILE: &str = "SSL_CERT_FILE";
const EXTRA_CA_FILE: &str = "CODEX_CA_CERTIFICATE";
/// Maximum number of files read from `SSL_CERT_DIR`. A typical directory has a few hundred.
const MAX_CERT_FILES: usize = 4096;

/// One client per redirect mode, because reqwest fixes the redirect policy per client.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    follow: Client,
    same_origin: Client,
    stop: Client,
}

/// Which redirects are followed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RedirectMode {
    /// All.
    Follow,
    /// Only to the same host and port. Others are an error.
    SameOrigin,
    /// None.
    Stop,
}

impl ConnectionPool {
    /// Loads the trusted roots and the proxies from the environment. Blocks.
    pub(crate) fn new(env: &BTreeMap<OsString, OsString>) -> Result<Self, HttpError> {
        let tls = tls_config(env)?;
        let build = |policy| {
            // Ignore proxy variables of this process.
            let mut builder = Client::builder()
                .no_proxy()
                .redirect(policy)
                // Do not send the URL to the next host: it may hold a secret.
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
            // reqwest removes `authorization`, `cookie` and similar headers on cross-host
            // redirects.
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
    let is_cross_origin = attempt
        .previous()
        .first()
        .is_some_and(|first| first.origin() != attempt.url().origin());
    if is_cross_origin {
        attempt.error("it would send a host variable to another host")
    } else if attempt.previous().len() > MAX_REDIRECTS {
        attempt.error("too many redirects")
    } else {
        attempt.follow()
    }
}

fn tls_config(env: &BTreeMap<OsString, OsString>) -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| HttpError::Host(error.to_string()))?
        .with_root_certificates(load_roots(env)?)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Constructor of a proxy for one URL scheme.
type ProxyConstructor = fn(&str) -> reqwest::Result<Proxy>;

/// Returns the proxies in the environment. An invalid proxy is an error, because bypassing it
/// silently would be worse.
fn proxies(env: &BTreeMap<OsString, OsString>) -> Result<Vec<Proxy>, HttpError> {
    let no_proxy = proxy_variable(env, "NO_PROXY").and_then(|(_, list)| NoProxy::from_string(list));
    let kinds: [(&str, ProxyConstructor); 3] = [
        ("HTTP_PROXY", |url| Proxy::http(url)),
        ("HTTPS_PROXY", |url| Proxy::https(url)),
        ("ALL_PROXY", |url| Proxy::all(url)),
    ];
    let mut proxies = Vec::new();
    for (name, construct) in kinds {
        if let Some((name, url)) = proxy_variable(env, name) {
            // Omit the value, which may hold a password.
            let proxy = construct(url).map_err(|_| {
                HttpError::Host(format!(
                    "environment variable `{name}` is not a valid proxy URL"
                ))
            })?;
            proxies.push(proxy.no_proxy(no_proxy.clone()));
        }
    }
    Ok(proxies)
}

/// Looks up a variable by its upper-case or lower-case name. Treats empty values as unset.
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

/// Loads the trusted roots. `SSL_CERT_FILE` and `SSL_CERT_DIR` replace the system's roots;
/// `CODEX_CA_CERTIFICATE` is trusted additionally. Without any root, plain `http` works and every
/// certificate is rejected.
///
/// # Errors
/// Fails if `CODEX_CA_CERTIFICATE`, or without it `SSL_CERT_FILE`, names a file without
/// certificates.
fn load_roots(env: &BTreeMap<OsString, OsString>) -> Result<RootCertStore, HttpError> {
    let mut store = RootCertStore::empty();
    let path_variable = |name: &str| env.get(OsStr::new(name)).filter(|path| !path.is_empty());
    let (file, directories) = (path_variable(CERT_FILE), path_variable("SSL_CERT_DIR"));
    let extra_ca = path_variable(EXTRA_CA_FILE);
    if let Some(extra_ca) = extra_ca {
        require_certificates(&mut store, EXTRA_CA_FILE, Path::new(extra_ca))?;
    }
    if file.is_none() && directories.is_none() {
        CA_BUNDLES
            .iter()
            .any(|file| add_certificates(&mut store, Path::new(file)));
        return Ok(store);
    }
    if let Some(file) = file {
        if extra_ca.is_none() {
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

/// Adds the certificates of a configured file, or returns an error without any.
fn require_certificates(
    store: &mut RootCertStore,
    variable: &str,
    file: &Path,
) -> Result<(), HttpError> {
    let certificate_error = |reason: &dyn fmt::Display| {
        let file = file.display();
        HttpError::Host(format!(
            "cannot read CA certificates from `{file}` set by {variable}: {reason}; use a PEM file \
             with at least one certificate or unset the variable"
        ))
    };
    std::fs::File::open(file).map_err(|error| certificate_error(&error))?;
    if add_certificates(store, file) {
        Ok(())
    } else {
        Err(certificate_error(&"it contains no certificate"))
    }
}

/// Adds the certificates of a file. Returns whether any is usable.
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
