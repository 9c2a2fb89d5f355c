//! Configuration of a hub. Pure: nothing is read or opened here.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use exec_transport::http::HostNames;

#[cfg(feature = "nats")]
use crate::nats::NatsConfig;
use crate::{rate_limit::RateLimitConfig, store::NodeName, url::PublicUrl};

/// Configuration of a hub.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Address to listen on. Port 0 selects a free port.
    pub listen: SocketAddr,
    /// URL under which clients reach the hub. `None`: taken from the `Host` header of each request.
    pub public_url: Option<PublicUrl>,
    /// Additional host names that requests may use, besides the public one, IP addresses,
    /// `localhost`, the machine's name and the names of the certificate.
    pub allowed_hosts: HostNames,
    /// Directory of the store and, by default, the token file.
    pub data_dir: PathBuf,
    /// Token file. `None`: `tokens.toml` in the data directory.
    pub token_file: Option<PathBuf>,
    /// Accepts JWTs if set.
    pub jwt: Option<JwtConfig>,
    /// Serves TLS with these files. `None`: plain HTTP, for loopback or behind a proxy.
    pub tls: Option<TlsFiles>,
    /// Joins a cluster if set. The node name is then that of the NATS configuration.
    #[cfg(feature = "nats")]
    pub nats: Option<NatsConfig>,
    /// Node name of a single hub.
    pub node: Option<NodeName>,
    /// Audit log file. `None`: `tracing`.
    pub audit_log: Option<PathBuf>,
    /// File of access keys that direct executors may sign with. `None`: only tokens are accepted.
    pub access_keys: Option<PathBuf>,
    /// Rate limits.
    pub rates: RateLimitConfig,
}

impl HubConfig {
    /// Creates the default configuration: single node, no TLS, tokens in the data directory.
    pub fn new(listen: SocketAddr, data_dir: impl Into<PathBuf>) -> Self {
        Self {
            listen,
            public_url: None,
            allowed_hosts: HostNames::default(),
            data_dir: data_dir.into(),
            token_file: None,
            jwt: None,
            tls: None,
            #[cfg(feature = "nats")]
            nats: None,
            node: None,
            audit_log: None,
            access_keys: None,
            rates: RateLimitConfig::default(),
        }
    }

    /// Returns the path of the token file.
    pub fn token_file(&self) -> PathBuf {
        self.token_file
            .clone()
            .unwrap_or_else(|| Self::default_token_file(&self.data_dir))
    }

    /// Returns the default path of the token file in a data directory.
    pub fn default_token_file(data_dir: &Path) -> PathBuf {
        data_dir.join("tokens.toml")
    }
}

/// How JWTs (HS256) are verified.
#[derive(Clone, Debug)]
pub struct JwtConfig {
    /// File with the shared secret.
    pub secret_file: PathBuf,
    /// Required issuer.
    pub issuer: Option<String>,
    /// Required audience.
    pub audience: Option<String>,
}

/// Certificate and key of the hub.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate chain in PEM format.
    pub certificates: PathBuf,
    /// Private key in PEM format.
    pub key: PathBuf,
}
