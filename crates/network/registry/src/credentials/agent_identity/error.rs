//! Why an agent cannot show who it is.

use crate::{credentials::ReachError, http::ExchangeError};

/// Why an agent identity cannot be used. Neither token nor key is repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentIdentityError {
    /// Caller: the text is no JWT with RS256 and a key id.
    #[error("agent identity token is malformed")]
    Token,
    /// Caller: the issuer is where others could read or forge what is said.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// Caller: a URL cannot be extended.
    #[error("URL of the agent identity's issuer is malformed")]
    Url,
    /// Transport: those who vouch did not answer.
    #[error("issuer of the agent identity did not answer")]
    Exchange(#[from] ExchangeError),
    /// Peer: it has no keys to verify with.
    #[error("keys of the agent identity's issuer are not to be had: {0}")]
    KeysRefused(u16),
    /// Peer: its keys cannot be read.
    #[error("keys of the agent identity's issuer cannot be read")]
    Keys,
    /// Caller: the token was signed with a key that its issuer does not know.
    #[error("agent identity token was signed with an unknown key")]
    UnknownKey,
    /// Caller: the token has expired.
    #[error("agent identity token has expired")]
    Expired,
    /// Caller: signature, issuer, audience or claims of the token are not as they must be.
    #[error("agent identity token is not accepted")]
    NotAccepted,
    /// Peer: the private key in the token is none.
    #[error("agent identity token holds no Ed25519 key")]
    PrivateKey,
    /// Peer: the task was not registered.
    #[error("task of the agent was not registered: {0}")]
    TaskRefused(u16),
    /// Peer: the id of the task cannot be read.
    #[error("id of the agent's task cannot be read")]
    TaskId,
}
