//! What a listener proves itself with.

use std::{path::Path, sync::Arc};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{PrivateKeyDer, pem::PemObject},
    },
};

use super::{TlsError, pem};

/// Builds the acceptor of a listener from PEM files.
pub fn acceptor(certificates: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let chain = pem::certificates(certificates)?;
    let text = pem::read(key)?;
    let key = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| TlsError::NoKey(key.display().to_string()))?;
    let config = ServerConfig::builder_with_provider(pem::provider())
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(TlsError::Refused)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
