//! What is wrong with certificates and keys that were named.

use std::io;

use tokio_rustls::rustls;

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
    /// Caller: a certificate in the file cannot be used.
    #[error("`{path}` holds a certificate that cannot be used: {reason}")]
    BadCertificate {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Caller: the file holds no key.
    #[error("`{0}` holds no PEM private key")]
    NoKey(String),
    /// Caller: key and certificate do not fit, or are not accepted.
    #[error("certificate or key is not accepted")]
    Refused(#[source] rustls::Error),
    /// Host: it has no roots to trust where they are looked for, and nothing else is trusted.
    #[error("this host has no root certificates to trust; name a PEM file with some")]
    NoRoots,
}
