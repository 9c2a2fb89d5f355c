//! TLS for listeners and clients, by rustls.
//! Invariant: an error about a file names the file.
//! Not here: the handshakes themselves (`listener`, `connect`).

mod acceptor;
mod error;
mod pem;
mod trust;

pub(crate) use self::pem::leaf_certificate;
pub use self::{acceptor::acceptor, error::TlsError, trust::Trust};
