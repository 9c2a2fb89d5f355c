//! How the server of an environment is reached.

use std::{fmt, path::PathBuf, time::Duration};

use exec_registry::{
    api::EnvironmentId as EnvironmentName,
    credentials::{AccountId, Token},
    http::BaseUrl,
};
use exec_transport::connect::{Address, BearerToken, CONNECT_TIMEOUT, Program};

/// How the server of an environment is reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reach {
    /// It listens, and is connected to as soon as there is an environment.
    Url(UrlReach),
    /// It is started, when the environment is first needed.
    Program(ProgramReach),
    /// It is registered with a registry, and is spoken with through a relay, end to end encrypted. It
    /// is connected to as soon as there is an environment.
    Relay(RelayReach),
}

/// A server that listens. `Debug` hides what may be secret.
#[derive(Clone, Eq, PartialEq)]
pub struct UrlReach {
    /// Where: a `ws://` or `wss://` URL.
    pub url: String,
    /// What is presented as `Authorization: Bearer`.
    pub auth_bearer_token: Option<BearerToken>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long the server may take to answer `initialize`.
    pub initialize_timeout: Duration,
}

impl UrlReach {
    /// A server without a token, with the usual patience.
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            auth_bearer_token: None,
            connect_timeout: CONNECT_TIMEOUT,
            initialize_timeout: INITIALIZE_TIMEOUT,
        }
    }
}

impl fmt::Debug for UrlReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UrlReach")
            .field("url", &self.url.parse::<Address>())
            .field("auth_bearer_token", &self.auth_bearer_token)
            .field("connect_timeout", &self.connect_timeout)
            .field("initialize_timeout", &self.initialize_timeout)
            .finish()
    }
}

/// A server that is started and spoken with over its standard input and output.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProgramReach {
    /// What is started.
    pub program: Program,
    /// How long it may take to answer `initialize`.
    pub initialize_timeout: Duration,
}

/// A server behind a relay.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RelayReach {
    /// The registry that knows it.
    pub registry_url: BaseUrl,
    /// Its name there.
    pub environment_id: EnvironmentName,
    /// What is presented to the registry.
    pub auth_token: AuthToken,
    /// Whose account is used, for a registry that asks for it.
    pub chatgpt_account_id: Option<AccountId>,
    /// How long opening the connection to the relay may take.
    pub connect_timeout: Duration,
    /// How long the server may take to answer `initialize`.
    pub initialize_timeout: Duration,
}

/// Where the token for a registry is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AuthToken {
    /// Here.
    Value(Token),
    /// In the variable of this name, which was read.
    Variable(String, Token),
    /// In this file, which is read for each connection: somebody may put a fresh one there.
    File(PathBuf),
}

/// Reads the address of a server on a network.
pub(super) fn network_address(url: &str) -> Option<Address> {
    match url.parse() {
        Ok(address @ Address::Network(_)) => Some(address),
        Ok(Address::Unix(_)) | Err(_) => None,
    }
}

/// How long a server may take to answer unless the file says otherwise.
pub(super) const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(10);
