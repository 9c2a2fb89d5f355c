//! TLS for listeners and clients, with rustls.
//! Invariant: an error about a file names the file. Elsewhere: the handshakes (`listener`,
//! `connect`).

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use exec_wire::http::CA_BUNDLES;
use tokio::task::spawn_blocking;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ClientConfig, RootCertStore, ServerConfig,
        crypto::{CryptoProvider, aws_lc_rs},
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use crate::connect::ConnectError;

/// Certificates that a client trusts for `wss://`. Files are read once, when the first connection
/// needs them; clones share the result.
#[derive(Clone, Debug)]
pub struct TrustStore {
    roots: RootSource,
    files: Vec<PathBuf>,
    /// The parsed configuration. Failures are not cached: the next connection retries.
    cached_config: Arc<OnceLock<Arc<ClientConfig>>>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RootSource {
    Platform,
    None,
}

impl TrustStore {
    /// Trusts the root certificates of this host.
    pub fn platform() -> Self {
        Self::new(RootSource::Platform, Vec::new())
    }

    /// Trusts only the certificates of one PEM file.
    pub fn only(file: impl Into<PathBuf>) -> Self {
        Self::new(RootSource::None, vec![file.into()])
    }

    /// Additionally trusts the certificates of a PEM file.
    #[must_use]
    pub fn and(mut self, file: impl Into<PathBuf>) -> Self {
        self.files.push(file.into());
        Self::new(self.roots, self.files)
    }

    /// Returns the rustls configuration, for TLS connections outside this crate.
    ///
    /// # Errors
    /// Fails if the trusted certificates cannot be read.
    pub async fn config(&self) -> Result<Arc<ClientConfig>, ConnectError> {
        if let Some(config) = self.cached_config.get() {
            return Ok(Arc::clone(config));
        }
        let trust = self.clone();
        let read = spawn_blocking(move || trust.build()).await;
        let config = read.map_err(io::Error::other)??;
        Ok(Arc::clone(self.cached_config.get_or_init(|| config)))
    }

    fn new(roots: RootSource, files: Vec<PathBuf>) -> Self {
        Self {
            roots,
            files,
            cached_config: Arc::default(),
        }
    }

    /// Reads the files. Blocks.
    fn build(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let mut store = RootCertStore::empty();
        for file in &self.files {
            add_file(&mut store, file)?;
        }
        if self.roots == RootSource::Platform {
            let loaded = add_first_bundle(&mut store, CA_BUNDLES.iter().map(Path::new));
            if !loaded && self.files.is_empty() {
                return Err(TlsError::NoRoots);
            }
        }
        let config = ClientConfig::builder_with_provider(crypto_provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Refused)?
            .with_root_certificates(store)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }
}

impl Default for TrustStore {
    fn default() -> Self {
        Self::platform()
    }
}

/// Adds all certificates of a file named by the caller.
fn add_file(store: &mut RootCertStore, file: &Path) -> Result<(), TlsError> {
    for certificate in read_certificates(file)? {
        store
            .add(certificate)
            .map_err(|error| TlsError::BadCertificate {
                path: file.display().to_string(),
                reason: error.to_string(),
            })?;
    }
    Ok(())
}

/// Adds the first usable bundle. Old certificates that rustls cannot parse are skipped.
fn add_first_bundle<'a>(
    store: &mut RootCertStore,
    bundles: impl Iterator<Item = &'a Path>,
) -> bool {
    for bundle in bundles {
        match read_certificates(bundle) {
            Ok(certificates) => {
                let (added, ignored) = store.add_parsable_certificates(certificates);
                tracing::debug!(bundle = %bundle.display(), added, ignored, "loaded host root certificates");
                if added > 0 {
                    return true;
                }
            }
            Err(error) => {
                tracing::trace!(bundle = %bundle.display(), %error, "no usable host root certificates in this file");
            }
        }
    }
    false
}

/// Builds the acceptor of a listener from PEM files.
pub fn acceptor(certificate_file: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let chain = read_certificates(certificate_file)?;
    let text = read_file(key)?;
    let key = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| TlsError::NoKey(key.display().to_string()))?;
    let config = ServerConfig::builder_with_provider(crypto_provider())
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(TlsError::Refused)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Reads a file.
fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read {
        path: path.display().to_string(),
        source,
    })
}

/// Reads all certificates of a file. None may be malformed.
fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read_file(path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::BadCertificate {
            path: path.display().to_string(),
            reason: error.to_string(),
        })?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(path.display().to_string()));
    }
    Ok(chain)
}

/// Reads the first certificate of a file: that of its owner.
pub(crate) fn leaf_certificate(path: &Path) -> Result<CertificateDer<'static>, TlsError> {
    let mut chain = read_certificates(path)?.into_iter();
    let none = || TlsError::NoCertificate(path.display().to_string());
    chain.next().ok_or_else(none)
}

/// Returns the cryptography used for TLS.
fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Why TLS set-up failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Caller: a file cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: String,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Caller: the file contains no certificate.
    #[error("`{0}` contains no PEM certificate")]
    NoCertificate(String),
    /// Caller: a certificate in the file cannot be used.
    #[error("`{path}` contains an unusable certificate: {reason}")]
    BadCertificate {
        /// The file.
        path: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// Caller: the file contains no private key.
    #[error("`{0}` contains no PEM private key")]
    NoKey(String),
    /// Caller: key and certificate do not match, or are rejected.
    #[error("certificate or key is not accepted")]
    Refused(#[source] rustls::Error),
    /// Host: no root certificates were found, and no others are trusted.
    #[error("this host has no root certificates to trust; name a PEM file with some")]
    NoRoots,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate() -> String {
        let certified_key = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
        certified_key.cert.pem()
    }

    #[test]
    fn error_names_the_file_that_failed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("good.pem"), certificate()).unwrap();
        std::fs::write(path("empty.pem"), "nothing in here").unwrap();
        let broken = certificate().replacen("MII", "!!!", 1);
        std::fs::write(path("broken.pem"), broken).unwrap();
        let section = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(path("junk.pem"), section).unwrap();
        assert!(TrustStore::only(path("good.pem")).build().is_ok());
        for bad in ["empty.pem", "broken.pem", "junk.pem", "none.pem"] {
            let trust = TrustStore::only(path("good.pem")).and(path(bad));
            let error = trust.build().err().unwrap();
            assert!(error.to_string().contains(bad), "{bad}: {error}");
        }
    }

    #[test]
    fn first_readable_bundle_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let paths =
            ["none.pem", "empty.pem", "one.pem", "two.pem"].map(|name| dir.path().join(name));
        std::fs::write(&paths[1], "").unwrap();
        std::fs::write(&paths[2], certificate()).unwrap();
        std::fs::write(&paths[3], certificate() + &certificate()).unwrap();
        let mut store = RootCertStore::empty();
        assert!(add_first_bundle(
            &mut store,
            paths.iter().map(PathBuf::as_path)
        ));
        assert_eq!(store.len(), 1);
        assert!(!add_first_bundle(
            &mut store,
            paths[..2].iter().map(PathBuf::as_path)
        ));
    }
}
