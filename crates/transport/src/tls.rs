//! TLS for listeners and clients, by rustls.

use std::{fs, io, path::Path, sync::Arc};

use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        self, ClientConfig, RootCertStore, ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

/// Builds the acceptor of a listener from PEM files.
pub fn acceptor(certificates: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let chain = read_certificates(certificates)?;
    let text = read(key)?;
    let key = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| TlsError::NoKey(key.display().to_string()))?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(TlsError::Refused)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Builds the connector of a client that trusts the certificates of a PEM file.
pub fn connector(roots: &Path) -> Result<TlsConnector, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in read_certificates(roots)? {
        store.add(certificate).map_err(TlsError::Refused)?;
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Refused)?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Caller: a file cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Caller: the file holds no certificate.
    #[error("`{0}` holds no PEM certificate")]
    NoCertificate(String),
    /// Caller: the file holds no key.
    #[error("`{0}` holds no PEM private key")]
    NoKey(String),
    /// Caller: key and certificate do not fit, or are not accepted.
    #[error("certificate or key is not accepted")]
    Refused(#[source] rustls::Error),
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read {
        path: path.display().to_string(),
        source,
    })
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text).flatten().collect();
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(path.display().to_string()));
    }
    Ok(chain)
}
