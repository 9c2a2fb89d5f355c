//! Why an upgrade request was refused.

/// Why an upgrade request is answered with 401. Its text is the response body, word for word.
///
/// In every case the client must act: it brought nothing, or nothing that is valid here.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthRejection {
    /// There is no `Authorization` header.
    #[error("missing websocket bearer token")]
    MissingToken,
    /// The header is not `Bearer`, a space and a token, in UTF-8.
    #[error("invalid authorization header")]
    InvalidHeader,
    /// The token is not the capability token.
    #[error("invalid websocket bearer token")]
    InvalidToken,
    /// The token is no JWT of the right shape, or not signed with HS256 and the shared secret.
    #[error("invalid websocket jwt")]
    InvalidJwt,
    /// `exp` has passed, by more than the allowed skew.
    #[error("expired websocket jwt")]
    ExpiredJwt,
    /// `nbf` has not come yet, even with the allowed skew.
    #[error("websocket jwt is not valid yet")]
    JwtNotYetValid,
    /// `iss` is missing or names someone else.
    #[error("websocket jwt issuer mismatch")]
    IssuerMismatch,
    /// `aud` is missing or does not name this server.
    #[error("websocket jwt audience mismatch")]
    AudienceMismatch,
}
