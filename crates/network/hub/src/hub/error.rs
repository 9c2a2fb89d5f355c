//! Why a hub does not start.

use std::{io, net::SocketAddr, path::PathBuf};

use exec_transport::{auth::SecretTooShort, tls::TlsError};

use crate::{
    audit::AuditError,
    direct::KeysError,
    nats::NatsError,
    store::{OpenError, StoreError},
    tokens::ReadError,
};

/// Why a hub does not start. In every case nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Host: the address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Caller: the certificate or its key cannot be used.
    #[error("cannot serve TLS")]
    Tls(#[from] TlsError),
    /// Caller: the token file cannot be used.
    #[error("cannot use the token file")]
    Tokens(#[from] ReadError),
    /// Caller: the file of the JWT secret cannot be read.
    #[error("cannot read the JWT secret {path}")]
    JwtSecret {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Caller: the JWT secret is too short to be one.
    #[error("cannot use the JWT secret {path}")]
    WeakJwtSecret {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SecretTooShort,
    },
    /// Caller: the file of access keys cannot be used.
    #[error("cannot use the access keys")]
    AccessKeys(#[from] KeysError),
    /// Host: the embedded store cannot be opened.
    #[error("cannot open the store")]
    Open(#[from] OpenError),
    /// Host: the store does not work.
    #[error("cannot use the store")]
    Store(#[from] StoreError),
    /// Host: the other nodes cannot be joined.
    #[error("cannot join the other nodes")]
    Nats(#[from] NatsError),
    /// Host: the audit log cannot be written.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// We: a task of the start ended early.
    #[error("start was interrupted")]
    Interrupted,
}
