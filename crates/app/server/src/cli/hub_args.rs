//! Options of the hub, and of what people do with it.

use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use clap::{Args, Subcommand};
use exec_hub::{
    nats::{NatsServers, Prefix, Replicas},
    principal::{PrincipalName, Role},
    store::NodeName,
};
use exec_registry::http::BaseUrl;
use exec_transport::http::HostNames;

/// Options of `exec-server hub`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct HubArgs {
    /// What to do instead of running a hub.
    #[command(subcommand)]
    pub command: Option<HubCommand>,

    /// How to run it.
    #[command(flatten)]
    pub flags: HubFlags,
}

/// How a hub is run.
#[derive(Args, Clone, Debug)]
pub struct HubFlags {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8765")]
    pub listen: SocketAddr,

    /// URL under which executors and harnesses reach the hub, such as that of a proxy before it
    /// [default: the one that each request names].
    #[arg(long, value_name = "URL", value_parser = BaseUrl::parse)]
    pub public_url: Option<BaseUrl>,

    /// Further names by which clients reach the hub, separated by commas, beside that of --public-url,
    /// IP addresses, localhost, the host name and the names of the certificate.
    #[arg(long, value_name = "NAMES")]
    pub allowed_host: Option<HostNames>,

    /// Where tokens and registrations are kept.
    #[command(flatten)]
    pub place: TokenFileArgs,

    /// File with the secret that signs JWTs (HS256), at least 32 bytes; they are let in beside tokens.
    #[arg(long, value_name = "FILE")]
    pub jwt_secret_file: Option<PathBuf>,

    /// Issuer (iss) that JWTs must name [default: any].
    #[arg(long, value_name = "NAME", requires = "jwt_secret_file")]
    pub jwt_issuer: Option<String>,

    /// Audience (aud) that JWTs must name [default: any].
    #[arg(long, value_name = "NAME", requires = "jwt_secret_file")]
    pub jwt_audience: Option<String>,

    /// Certificate chain, in PEM; with it the hub speaks https:// and wss:// only.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// NATS server with JetStream, over which several hubs are one; several of a cluster with commas.
    #[arg(long, value_name = "nats://HOST:PORT")]
    pub nats: Option<NatsServers>,

    /// NATS credentials file, with JWT and nkey.
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub nats_credentials: Option<PathBuf>,

    /// Certificates to trust of a tls:// NATS server, in PEM [default: the system's].
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub nats_ca: Option<PathBuf>,

    /// How many servers of a cluster keep each record: 1, 3 or 5 [default: 1].
    #[arg(long, value_name = "N", requires = "nats", value_parser = replicas)]
    pub nats_replicas: Option<Replicas>,

    /// What begins the names of all subjects and buckets; hubs with another one are strangers
    /// [default: exec-hub].
    #[arg(long, value_name = "PREFIX", requires = "nats")]
    pub nats_prefix: Option<Prefix>,

    /// Name of this hub among them, in lists and logs [default: the host's].
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<NodeName>,

    /// File to which is appended who connected to what, in JSON lines [default: the log, at level
    /// info].
    #[arg(long, value_name = "FILE")]
    pub audit_log: Option<PathBuf>,

    /// File with the AWS access keys that direct executors may sign with [default: they present tokens].
    #[arg(long, value_name = "FILE")]
    pub access_keys: Option<PathBuf>,
}

/// Where the tokens of a hub are.
#[derive(Args, Clone, Debug, Default)]
pub struct TokenFileArgs {
    /// Directory of the hub
    /// [default: $EXEC_SERVER_HOME/hub or ~/.local/share/exec-server/hub].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// File with the tokens [default: tokens.toml in the directory of the hub].
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// What to do with a hub instead of running one.
#[derive(Clone, Debug, Subcommand)]
pub enum HubCommand {
    /// Makes, lists and revokes tokens. A running hub notices within a second.
    #[command(subcommand, disable_help_subcommand = true)]
    Token(TokenCommand),
    /// Lists the environments of a running hub, as far as the token may see them.
    ///
    /// The token is taken from --token-file, or else from EXEC_SERVER_HUB_TOKEN. The exit status is 77
    /// if the hub does not accept it.
    Environments(HubEnvironments),
}

/// What to do with tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Makes a token and prints it, once: only its SHA-256 is kept.
    ///
    /// With --out the token goes to a file that only this account can read, instead of standard output.
    Create(MakeToken),
    /// Lists tokens, without what is secret.
    List(ListTokens),
    /// Makes a token invalid.
    Revoke(RevokeToken),
}

/// Options of `exec-server hub token create`.
#[derive(Args, Clone, Debug)]
pub struct MakeToken {
    /// Whom the token stands for. What this principal registers first, it owns.
    #[arg(long, value_name = "PRINCIPAL")]
    pub name: PrincipalName,

    /// What it may do; repeatable [default: executor and harness].
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    pub role: Vec<Role>,

    /// Environments it may be used for, and for no others, as a glob; repeatable [default: those that the
    /// principal owns].
    #[arg(long, value_name = "GLOB")]
    pub environment: Vec<String>,

    /// How long it is valid, such as 90d, 12h or 30m [default: until it is revoked].
    #[arg(long, value_name = "SPAN")]
    pub expires_in: Option<TokenLifetime>,

    /// File to write the token to, with mode 0600, instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Replaces the file of --out if there is one.
    #[arg(long, requires = "out")]
    pub force: bool,

    /// Where tokens are kept.
    #[command(flatten)]
    pub place: TokenFileArgs,
}

/// Options of `exec-server hub token list`.
#[derive(Args, Clone, Debug)]
pub struct ListTokens {
    /// Prints one JSON array instead of text.
    #[arg(long)]
    pub json: bool,

    /// Where tokens are kept.
    #[command(flatten)]
    pub place: TokenFileArgs,
}

/// Options of `exec-server hub token revoke`.
#[derive(Args, Clone, Debug)]
pub struct RevokeToken {
    /// The token's id, as `list` shows it.
    #[arg(value_name = "ID")]
    pub id: String,

    /// Where tokens are kept.
    #[command(flatten)]
    pub place: TokenFileArgs,
}

/// Options of `exec-server hub environments`.
#[derive(Args, Clone, Debug)]
pub struct HubEnvironments {
    /// The hub.
    #[arg(long, value_name = "URL", value_parser = BaseUrl::parse)]
    pub url: BaseUrl,

    /// File with the token [default: EXEC_SERVER_HUB_TOKEN].
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Prints one JSON array instead of text.
    #[arg(long)]
    pub json: bool,
}

/// A span of time, written as a whole number and a unit: s, m, h, d or w.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TokenLifetime(pub Duration);

impl TokenLifetime {
    /// The longest span that is accepted, a hundred years: it can be added to any date.
    const MAX: u64 = 100 * 366 * DAY;
}

impl FromStr for TokenLifetime {
    type Err = TokenLifetimeParseError;

    fn from_str(text: &str) -> Result<Self, TokenLifetimeParseError> {
        let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "s" => 1,
            "m" => 60,
            "h" => 60 * 60,
            "d" => DAY,
            "w" => 7 * DAY,
            _ => return Err(TokenLifetimeParseError),
        };
        let number: u64 = digits.parse().map_err(|_| TokenLifetimeParseError)?;
        let seconds = number.checked_mul(unit).ok_or(TokenLifetimeParseError)?;
        if seconds == 0 || seconds > Self::MAX {
            return Err(TokenLifetimeParseError);
        }
        Ok(Self(Duration::from_secs(seconds)))
    }
}

/// Caller: the text is no span of time.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected a whole number with s, m, h, d or w, such as 90d, and at most a hundred years")]
pub struct TokenLifetimeParseError;

fn replicas(text: &str) -> Result<Replicas, &'static str> {
    match text {
        "1" => Ok(Replicas::One),
        "3" => Ok(Replicas::Three),
        "5" => Ok(Replicas::Five),
        _ => Err("expected 1, 3 or 5"),
    }
}

const DAY: u64 = 24 * 60 * 60;
