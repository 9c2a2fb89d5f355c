//! What a hub is told when it starts. Pure: nothing is read or opened here.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use exec_transport::http::HostNames;

use crate::{nats::NatsConfig, rate_limit::RateRules, store::NodeName, url::PublicUrl};

/// How a hub runs.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Where it listens. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where clients find it. `None`: where each of them says it did, in its `Host` header.
    pub public_url: Option<PublicUrl>,
    /// Names by which clients call it, beside its public one, IP addresses, `localhost`, the machine's
    /// name and the names of its certificate.
    pub allowed_hosts: HostNames,
    /// What it keeps: the store, and the token file unless that is elsewhere.
    pub data_dir: PathBuf,
    /// The tokens that let somebody in. `None`: `tokens.toml` in the data directory.
    pub token_file: Option<PathBuf>,
    /// Who may sign tokens of their own.
    pub jwt: Option<JwtConfig>,
    /// Serves TLS with these. `None`: plain HTTP, for this machine or behind a proxy.
    pub tls: Option<TlsFiles>,
    /// Makes it one node of several. Its name there is the configuration's own.
    pub nats: Option<NatsConfig>,
    /// What it is called when it is alone.
    pub node: Option<NodeName>,
    /// Where to write who did what. `None`: among the other logs.
    pub audit_log: Option<PathBuf>,
    /// Access keys that direct executors may sign with. `None`: they present a token.
    pub access_keys: Option<PathBuf>,
    /// How often somebody may ask.
    pub rates: RateRules,
}

impl HubConfig {
    /// The usual: alone, without TLS, with tokens from the data directory.
    pub fn new(listen: SocketAddr, data_dir: impl Into<PathBuf>) -> Self {
        Self {
            listen,
            public_url: None,
            allowed_hosts: HostNames::default(),
            data_dir: data_dir.into(),
            token_file: None,
            jwt: None,
            tls: None,
            nats: None,
            node: None,
            audit_log: None,
            access_keys: None,
            rates: RateRules::default(),
        }
    }

    /// Returns where the tokens are.
    pub fn token_file(&self) -> PathBuf {
        self.token_file
            .clone()
            .unwrap_or_else(|| Self::default_token_file(&self.data_dir))
    }

    /// Returns where the tokens of a data directory are, unless somebody says otherwise.
    pub fn default_token_file(data_dir: &Path) -> PathBuf {
        data_dir.join("tokens.toml")
    }
}

/// Who may sign tokens (HS256 JWT), and what these must say.
#[derive(Clone, Debug)]
pub struct JwtConfig {
    /// Holds the shared secret.
    pub secret_file: PathBuf,
    /// Whom they must come from.
    pub issuer: Option<String>,
    /// Whom they must be meant for.
    pub audience: Option<String>,
}

/// What a hub proves itself with.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate chain, PEM.
    pub certificates: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
}
