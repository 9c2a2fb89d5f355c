//! NATS configuration.

use std::{fmt, path::PathBuf, str::FromStr};

use async_nats::ServerAddr;
use url::Url;

use crate::store::{NodeName, is_plain_id};

/// How a node joins the cluster.
#[derive(Clone, Debug)]
pub struct NatsConfig {
    /// The brokers.
    pub servers: NatsServers,
    /// NATS credentials file (JWT and nkey), instead of a user in the URL.
    pub credentials_file: Option<PathBuf>,
    /// CA certificates (PEM) to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Prefix of every subject and bucket: hubs with different prefixes can share a broker.
    pub prefix: NatsPrefix,
    /// Name of this node. Need not be unique.
    pub node: NodeName,
    /// Number of brokers that store each record.
    pub replicas: ReplicaCount,
}

impl NatsConfig {
    /// Creates the default configuration: prefix `exec-hub`, one replica, the system's
    /// certificates.
    pub fn new(servers: NatsServers, node: NodeName) -> Self {
        Self {
            servers,
            credentials_file: None,
            ca_file: None,
            prefix: NatsPrefix::default(),
            node,
            replicas: ReplicaCount::default(),
        }
    }
}

/// One or more brokers of a cluster: `nats://` or `tls://` URLs separated by commas, with
/// `user:password@` or `token@` in the first.
#[derive(Clone, Eq, PartialEq)]
pub struct NatsServers {
    addresses: Vec<ServerAddr>,
    login: NatsLogin,
}

impl NatsServers {
    pub(super) fn addresses(&self) -> &[ServerAddr] {
        &self.addresses
    }

    pub(super) fn login(&self) -> &NatsLogin {
        &self.login
    }
}

impl FromStr for NatsServers {
    type Err = NatsServersError;

    fn from_str(text: &str) -> Result<Self, NatsServersError> {
        let mut login = NatsLogin::None;
        let mut addresses = Vec::new();
        for part in text.split(',') {
            let (address, user) = server(part.trim())?;
            if addresses.is_empty() {
                login = user;
            } else if user != NatsLogin::None && user != login {
                return Err(NatsServersError::ManyLogins);
            }
            addresses.push(address);
        }
        Ok(Self { addresses, login })
    }
}

impl fmt::Display for NatsServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.addresses.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let (scheme, host, port) = (address.scheme(), address.host(), address.port());
            write!(f, "{comma}{scheme}://{host}:{port}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for NatsServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsServers({self})")
    }
}

/// Login at the broker.
#[derive(Clone, Eq, PartialEq)]
pub(super) enum NatsLogin {
    None,
    Token(String),
    User { name: String, password: String },
}

impl fmt::Debug for NatsLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(..)")
    }
}

/// Caller: the text is not a list of brokers.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NatsServersError {
    /// Not a URL with a host.
    #[error("expected nats://HOST:PORT")]
    Url,
    /// A scheme other than `nats` and `tls`.
    #[error("scheme of a NATS URL must be nats or tls")]
    Scheme,
    /// The URL has a path or query.
    #[error("NATS URL must not have a path or query")]
    Path,
    /// User or password is not percent-encoded UTF-8.
    #[error("user or password of the NATS URL is not percent-encoded text")]
    Login,
    /// The brokers of a cluster must share one login.
    #[error("NATS URLs have different users")]
    ManyLogins,
}

fn server(text: &str) -> Result<(ServerAddr, NatsLogin), NatsServersError> {
    let mut url: Url = text.parse().map_err(|_| NatsServersError::Url)?;
    if !matches!(url.scheme(), "nats" | "tls") {
        return Err(NatsServersError::Scheme);
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(NatsServersError::Url);
    }
    if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
        return Err(NatsServersError::Path);
    }
    let login = match (url.username(), url.password()) {
        ("", None) => NatsLogin::None,
        (token, None) => NatsLogin::Token(decode(token)?),
        (name, Some(password)) => NatsLogin::User {
            name: decode(name)?,
            password: decode(password)?,
        },
    };
    // The address appears in logs, so it must not contain the login.
    url.set_username("").map_err(|()| NatsServersError::Url)?;
    url.set_password(None).map_err(|()| NatsServersError::Url)?;
    let address = ServerAddr::from_url(url).map_err(|_| NatsServersError::Scheme)?;
    Ok((address, login))
}

fn decode(text: &str) -> Result<String, NatsServersError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let value = digit().zip(digit()).map(|(high, low)| high * 16 + low);
            value
                .and_then(|value| u8::try_from(value).ok())
                .ok_or(NatsServersError::Login)?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).map_err(|_| NatsServersError::Login)
}

/// Prefix of a hub's names in its broker: 1 to 32 of the characters `A-Z a-z 0-9 _ -`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NatsPrefix(String);

impl NatsPrefix {
    /// Returns the prefix.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for NatsPrefix {
    fn default() -> Self {
        Self("exec-hub".to_owned())
    }
}

impl FromStr for NatsPrefix {
    type Err = NatsPrefixError;

    fn from_str(text: &str) -> Result<Self, NatsPrefixError> {
        let prefix = is_plain_id(text, 32).then(|| Self(text.to_owned()));
        prefix.ok_or(NatsPrefixError)
    }
}

/// Caller: the text is not a valid prefix.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected 1 to 32 characters out of A-Z, a-z, 0-9, `_` and `-`")]
pub struct NatsPrefixError;

/// Number of brokers that store each record.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ReplicaCount {
    /// One: a single broker.
    #[default]
    One,
    /// Three: tolerates the loss of one.
    Three,
    /// Five: tolerates the loss of two.
    Five,
}

impl ReplicaCount {
    pub(super) fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Three => 3,
            Self::Five => 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(text: &str) -> NatsLogin {
        text.parse::<NatsServers>().expect("parses").login
    }

    #[test]
    fn logins_are_removed_from_the_url_and_redacted() {
        assert_eq!(login("nats://h:4222"), NatsLogin::None);
        assert_eq!(
            login("nats://s%2Fcret@h"),
            NatsLogin::Token("s/cret".to_owned())
        );
        let user = NatsLogin::User {
            name: "u".to_owned(),
            password: "p:w@".to_owned(),
        };
        assert_eq!(login("tls://u:p%3Aw%40@h, tls://u:p%3Aw%40@i:9"), user);
        let servers: NatsServers = "nats://u:hidden@h,nats://i:9".parse().expect("parses");
        assert_eq!(servers.to_string(), "nats://h:4222,nats://i:9");
        assert!(!format!("{servers:?} {:?}", servers.login).contains("hidden"));
        assert!(!servers.addresses[0].as_url_str().contains("hidden"));
    }

    #[test]
    fn invalid_broker_urls_are_rejected() {
        for (text, error) in [
            ("", NatsServersError::Url),
            ("h:4222", NatsServersError::Scheme),
            ("http://h", NatsServersError::Scheme),
            ("nats://", NatsServersError::Url),
            ("nats://h,", NatsServersError::Url),
            ("nats://h/x", NatsServersError::Path),
            ("nats://h?x", NatsServersError::Path),
            ("nats://a%zz@h", NatsServersError::Login),
            ("nats://a:b%ff@h", NatsServersError::Login),
            ("nats://a:b@h,nats://c:d@i", NatsServersError::ManyLogins),
        ] {
            assert_eq!(text.parse::<NatsServers>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn prefix_is_safe_in_subjects_and_buckets() {
        assert_eq!(
            NatsPrefix::default().as_str().parse::<NatsPrefix>(),
            Ok(NatsPrefix::default())
        );
        for bad in ["", "a.b", "a b", "*", ">", "ä", &"x".repeat(33)] {
            assert_eq!(bad.parse::<NatsPrefix>(), Err(NatsPrefixError), "{bad:?}");
        }
    }
}
