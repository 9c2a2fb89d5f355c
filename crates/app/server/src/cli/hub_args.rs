//! Options of `exec-server hub` and its subcommands.

#[cfg(not(feature = "nats"))]
use std::convert::Infallible;
use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use clap::{Args, Subcommand};
#[cfg(feature = "nats")]
use exec_hub::nats::{NatsPrefix, NatsServers, ReplicaCount};
use exec_hub::{
    principal::{PrincipalName, Role},
    store::NodeName,
};
use exec_registry::{http::BaseUrl, invite::InviteRole};
use exec_settings::settings_source::duration;
use exec_transport::http::HostNames;

/// Options of `exec-server hub`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct HubArgs {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Option<HubCommand>,

    /// Options for running the hub.
    #[command(flatten)]
    pub flags: HubFlags,
}

/// Options for running a hub.
#[derive(Args, Clone, Debug)]
pub struct HubFlags {
    /// Address to listen on; port 0 picks a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8765")]
    pub listen: SocketAddr,

    /// URL of the hub for executors and harnesses, such as that of a proxy in front of it [default:
    /// the one in each request].
    #[arg(long, value_name = "URL", value_parser = BaseUrl::parse)]
    pub public_url: Option<BaseUrl>,

    /// Additional host names of the hub, separated by commas, besides that of --public-url, IP
    /// addresses, localhost, the host name and the names in the certificate.
    #[arg(long, value_name = "NAMES")]
    pub allowed_host: Option<HostNames>,

    /// Where tokens and registrations are stored.
    #[command(flatten)]
    pub token_files: TokenFileArgs,

    /// File with the secret that signs JWTs (HS256), at least 32 bytes; JWTs are accepted besides
    /// tokens.
    #[arg(long, value_name = "FILE")]
    pub jwt_secret_file: Option<PathBuf>,

    /// Required issuer (iss) of JWTs [default: any].
    #[arg(long, value_name = "NAME", requires = "jwt_secret_file")]
    pub jwt_issuer: Option<String>,

    /// Required audience (aud) of JWTs [default: any].
    #[arg(long, value_name = "NAME", requires = "jwt_secret_file")]
    pub jwt_audience: Option<String>,

    /// Certificate chain in PEM; enables https:// and wss://, and disables plain connections.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// How several hubs become one.
    #[command(flatten)]
    pub nats: NatsArgs,

    /// Name of this hub in lists and logs [default: the host's].
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<NodeName>,

    /// File for the audit log of connections, in JSON lines [default: the log, at level info].
    #[arg(long, value_name = "FILE")]
    pub audit_log: Option<PathBuf>,

    /// File with AWS access keys for direct executors [default: they present tokens].
    #[arg(long, value_name = "FILE")]
    pub access_keys: Option<PathBuf>,
}

/// How hubs on several machines become one.
#[cfg(feature = "nats")]
#[derive(Args, Clone, Debug)]
pub struct NatsArgs {
    /// NATS servers with JetStream that connect several hubs, separated by commas.
    #[arg(id = "nats", long = "nats", value_name = "nats://HOST:PORT")]
    pub servers: Option<NatsServers>,

    /// NATS credentials file, with JWT and nkey.
    #[arg(long = "nats-credentials", value_name = "FILE", requires = "nats")]
    pub credentials: Option<PathBuf>,

    /// Trusted certificates for a tls:// NATS server, in PEM [default: the system's].
    #[arg(long = "nats-ca", value_name = "FILE", requires = "nats")]
    pub ca: Option<PathBuf>,

    /// Number of NATS servers that store each record: 1, 3 or 5 [default: 1].
    #[arg(long = "nats-replicas", value_name = "N", requires = "nats", value_parser = replicas)]
    pub replicas: Option<ReplicaCount>,

    /// Prefix of all subjects and buckets; hubs with different prefixes are separate [default:
    /// exec-hub].
    #[arg(long = "nats-prefix", value_name = "PREFIX", requires = "nats")]
    pub prefix: Option<NatsPrefix>,
}

/// The same flags in a build without NATS: all of them are errors.
#[cfg(not(feature = "nats"))]
#[derive(Args, Clone, Debug)]
pub struct NatsArgs {
    #[arg(
        long, hide = true, value_parser = refuse_nats,
        aliases = ["nats-credentials", "nats-ca", "nats-replicas", "nats-prefix"]
    )]
    nats: Option<Infallible>,
}

#[cfg(not(feature = "nats"))]
fn refuse_nats(_: &str) -> Result<Infallible, &'static str> {
    Err("this program was built without the feature `nats`")
}

/// Location of a hub's tokens.
#[derive(Args, Clone, Debug, Default)]
pub struct TokenFileArgs {
    /// Data directory [default: $EXEC_SERVER_HOME/hub or ~/.local/share/exec-server/hub].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Token file [default: tokens.toml in the data directory].
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Subcommands of `hub`.
#[derive(Clone, Debug, Subcommand)]
pub enum HubCommand {
    /// Creates, lists and revokes tokens. A running hub notices within a second.
    #[command(subcommand, disable_help_subcommand = true)]
    Token(TokenCommand),
    /// Prints a line that adds a machine, or a harness that uses one, to this hub: once, until it
    /// expires.
    ///
    /// On the machine: `exec-server join LINE`. Where it is used: `exec-server env add NAME --invite
    /// LINE`. The line is exchanged for a token that lasts until `hub token revoke`. A running hub
    /// notices within a second.
    Invite(HubInvite),
    /// Lists the environments of a running hub that the token may see.
    ///
    /// The token is read from --token-file, else from EXEC_SERVER_HUB_TOKEN. The exit status is 77
    /// if the hub rejects it.
    Environments(HubEnvironments),
}

/// Subcommands of `hub token`.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Creates a token and prints it once: only its SHA-256 is stored.
    ///
    /// With --out the token is written to a file that only this account can read, instead of
    /// stdout.
    Create(MakeToken),
    /// Lists tokens without their secrets.
    List(ListTokens),
    /// Revokes a token.
    Revoke(RevokeToken),
}

/// Options of `exec-server hub token create`.
#[derive(Args, Clone, Debug)]
pub struct MakeToken {
    /// Principal of the token. It owns the environments it registers first.
    #[arg(long, value_name = "PRINCIPAL")]
    pub name: PrincipalName,

    /// Allowed roles; repeatable [default: executor and harness].
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    pub role: Vec<Role>,

    /// Only environments that match this glob; repeatable [default: those that the principal owns].
    #[arg(long, value_name = "GLOB")]
    pub environment: Vec<String>,

    /// Validity, such as 90d, 12h or 30m [default: until it is revoked].
    #[arg(long, value_name = "SPAN")]
    pub expires_in: Option<TokenLifetime>,

    /// File to write the token to, with mode 0600, instead of stdout.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Replaces an existing file of --out.
    #[arg(long, requires = "out")]
    pub force: bool,

    /// Where tokens are stored.
    #[command(flatten)]
    pub token_files: TokenFileArgs,
}

/// Options of `exec-server hub token list`.
#[derive(Args, Clone, Debug)]
pub struct ListTokens {
    /// Prints one JSON array instead of text.
    #[arg(long)]
    pub json: bool,

    /// Where tokens are stored.
    #[command(flatten)]
    pub token_files: TokenFileArgs,
}

/// Options of `exec-server hub token revoke`.
#[derive(Args, Clone, Debug)]
pub struct RevokeToken {
    /// Id of the token, from `list`.
    #[arg(value_name = "ID")]
    pub id: String,

    /// Where tokens are stored.
    #[command(flatten)]
    pub token_files: TokenFileArgs,
}

/// Options of `exec-server hub invite`.
#[derive(Args, Clone, Debug)]
pub struct HubInvite {
    /// Environment: the id of the machine; with --role harness, the id to use or a glob such as
    /// 'box-*'.
    #[arg(long, value_name = "ID")]
    pub name: String,

    /// Role that the invite grants: `executor` runs commands, `harness` uses an executor.
    #[arg(long, value_name = "ROLE", default_value = "executor")]
    pub role: InviteRole,

    /// Principal of the token [default: the name]. The first that registers an environment owns it.
    #[arg(long, value_name = "PRINCIPAL")]
    pub principal: Option<PrincipalName>,

    /// How long the line can be used, such as 30m, 24h or 7d, at most 30d.
    #[arg(long, value_name = "SPAN", default_value = "24h")]
    pub expires_in: TokenLifetime,

    /// URL of the hub in the line [default: that of the hub that ran last with this data
    /// directory].
    #[arg(long, value_name = "URL", value_parser = BaseUrl::parse)]
    pub url: Option<BaseUrl>,

    /// Where tokens are stored.
    #[command(flatten)]
    pub token_files: TokenFileArgs,
}

/// Options of `exec-server hub environments`.
#[derive(Args, Clone, Debug)]
pub struct HubEnvironments {
    /// URL of the hub.
    #[arg(long, value_name = "URL", value_parser = BaseUrl::parse)]
    pub url: BaseUrl,

    /// File with the token [default: EXEC_SERVER_HUB_TOKEN].
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Prints one JSON array instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Duration as a whole number with a unit: s, m, h, d or w.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TokenLifetime(pub Duration);

impl FromStr for TokenLifetime {
    type Err = TokenLifetimeParseError;

    fn from_str(text: &str) -> Result<Self, TokenLifetimeParseError> {
        let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
        let number: u32 = digits.parse().map_err(|_| TokenLifetimeParseError)?;
        duration(number.into(), &text[digits.len()..])
            .filter(|span| span.as_secs() > 0 && !text.ends_with("ms"))
            .map(Self)
            .ok_or(TokenLifetimeParseError)
    }
}

/// Caller: invalid duration.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected a whole number with s, m, h, d or w, such as 90d, and at most a hundred years")]
pub struct TokenLifetimeParseError;

#[cfg(feature = "nats")]
fn replicas(text: &str) -> Result<ReplicaCount, &'static str> {
    match text {
        "1" => Ok(ReplicaCount::One),
        "3" => Ok(ReplicaCount::Three),
        "5" => Ok(ReplicaCount::Five),
        _ => Err("expected 1, 3 or 5"),
    }
}
