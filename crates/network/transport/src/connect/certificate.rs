//! What is wrong with a server's certificate, in words.

use tokio_rustls::rustls::{self, CertificateError};

/// Peer: why its certificate is not accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateFault {
    /// Its time is over.
    #[error("it has expired")]
    Expired,
    /// Its time has not begun.
    #[error("it is not valid yet")]
    NotYetValid,
    /// Nobody who is trusted has issued it.
    #[error("its issuer is not trusted")]
    UnknownIssuer,
    /// It is for another host.
    #[error("it is not for this host name")]
    WrongName,
    /// It was taken back.
    #[error("it is revoked")]
    Revoked,
    /// Something else, which the source tells.
    #[error("it cannot be verified")]
    Unverified,
}

impl CertificateFault {
    /// Tells what is wrong, if the failure is about a certificate.
    pub(super) fn of(error: &rustls::Error) -> Option<Self> {
        let rustls::Error::InvalidCertificate(error) = error else {
            return None;
        };
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum grows, and what is not named here is told by the source"
        )]
        Some(match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            // A signature is bad where a trusted issuer has the name, but not the key: such as one
            // that was made again.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::WrongName
            }
            CertificateError::Revoked => Self::Revoked,
            _ => Self::Unverified,
        })
    }
}
