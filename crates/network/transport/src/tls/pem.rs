//! Certificates out of PEM files, and what they are checked with.

use std::{fs, path::Path, sync::Arc};

use tokio_rustls::rustls::{
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, pem::PemObject},
};

use super::TlsError;

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read {
        path: path.display().to_string(),
        source,
    })
}

/// Reads the certificates of a file. All of them must be whole.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(path)?;
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

/// Reads the first certificate of a file, which is the one of its owner.
pub(crate) fn leaf_certificate(path: &Path) -> Result<CertificateDer<'static>, TlsError> {
    let mut chain = certificates(path)?.into_iter();
    let none = || TlsError::NoCertificate(path.display().to_string());
    chain.next().ok_or_else(none)
}

/// The cryptography that TLS is made of.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
