//! `exec-server hub`: runs a hub, edits its tokens, and lists its environments.
//!
//! The hub itself is in `exec-hub`; here are its paths, its output and its shutdown. Invariant: a
//! token is printed once, by the command that created it; no other secret is ever printed.

mod environment_list;
mod invites;
#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow};
use exec_cli::command::TextTable;
use exec_hub::{
    config::{HubConfig, JwtConfig, TlsFiles},
    hub::Hub,
    principal::{EnvironmentGlobs, RoleSet},
    store::Timestamp,
    tokens::{self as hub_tokens, NewToken, TokenEntry, TokenId},
    url::PublicUrl,
};
#[cfg(feature = "nats")]
use exec_hub::{nats::NatsConfig, store::NodeName};
use exec_spawn::release_free_memory;
use serde::Serialize;
use tokio::{task::spawn_blocking, time::sleep};

use crate::{
    cli::{HubFlags, ListTokens, MakeToken, RevokeToken, TokenCommand, TokenFileArgs},
    config::VariableLookup,
    shutdown_signal::{ShutdownSignal, StdinClose},
    telemetry::resident_bytes,
};

pub use self::{environment_list::list_environments, invites::create_invite};

/// Runs a hub until SIGTERM or SIGINT. Prints its URL to stdout once it is bound.
///
/// Needs a multi-threaded runtime. Dropping the future cuts every connection.
///
/// # Errors
/// When it cannot listen, or its files or options are invalid.
pub async fn run_hub(flags: &HubFlags, lookup: VariableLookup<'_>) -> anyhow::Result<()> {
    let mut stop = ShutdownSignal::new(StdinClose::Ignored)?;
    let config = config(flags, lookup)?;
    for warning in warnings(&config, flags) {
        tracing::error!("{warning}");
    }
    let starting = Hub::start(config);
    let hub = tokio::select! {
        hub = starting => hub?,
        () = stop.recv() => return Ok(()),
    };
    invites::remember_url(flags, lookup, &hub);
    announce(&hub.url())?;
    tokio::select! {
        () = stop.recv() => {}
        never = release_memory() => match never {},
    }
    tokio::select! {
        () = hub.stop() => {}
        // A second request stops at once.
        () = stop.recv() => {}
    }
    Ok(())
}

/// Builds the configuration from flags and variables.
fn config(flags: &HubFlags, lookup: VariableLookup<'_>) -> anyhow::Result<HubConfig> {
    let paths = HubPaths::find(&flags.token_files, lookup)?;
    let public_url = flags.public_url.as_ref();
    let public_url = public_url.map(|url| PublicUrl::fixed(&url.to_string()));
    let tls = match (&flags.tls_cert, &flags.tls_key) {
        (Some(certificates), Some(key)) => Some(TlsFiles {
            certificates: certificates.clone(),
            key: key.clone(),
        }),
        (None, _) | (_, None) => None,
    };
    Ok(HubConfig {
        public_url: public_url.transpose()?,
        allowed_hosts: flags.allowed_host.clone().unwrap_or_default(),
        token_file: Some(paths.token_file),
        jwt: flags.jwt_secret_file.as_ref().map(|file| JwtConfig {
            secret_file: file.clone(),
            issuer: flags.jwt_issuer.clone(),
            audience: flags.jwt_audience.clone(),
        }),
        tls,
        #[cfg(feature = "nats")]
        nats: nats_config(flags)?,
        node: flags.node_name.clone(),
        audit_log: flags.audit_log.clone(),
        access_keys: flags.access_keys.clone(),
        ..HubConfig::new(flags.listen, paths.data_dir)
    })
}

/// Builds the configuration of a cluster's node, if the flags ask for one.
#[cfg(feature = "nats")]
fn nats_config(flags: &HubFlags) -> anyhow::Result<Option<NatsConfig>> {
    let Some(servers) = &flags.nats.servers else {
        return Ok(None);
    };
    let node = flags.node_name.clone().or_else(this_host);
    let node = node.context("the host name is not a valid node name: give --node-name")?;
    let defaults = NatsConfig::new(servers.clone(), node);
    Ok(Some(NatsConfig {
        credentials_file: flags.nats.credentials.clone(),
        ca_file: flags.nats.ca.clone(),
        replicas: flags.nats.replicas.unwrap_or_default(),
        prefix: flags.nats.prefix.clone().unwrap_or(defaults.prefix),
        ..defaults
    }))
}

/// Returns warnings about unusual settings.
fn warnings(config: &HubConfig, flags: &HubFlags) -> Vec<String> {
    let mut warnings = Vec::new();
    let file = config.token_file();
    if config.jwt.is_none() && is_without_tokens(&file) {
        warnings.push(format!(
            "no client can connect: `{}` has no token; `exec-server hub token create` makes one, \
             without a restart",
            file.display()
        ));
    }
    let proxied = flags.public_url.as_ref();
    let proxied = proxied.is_some_and(|url| url.url().scheme() == "https");
    if !config.listen.ip().to_canonical().is_loopback() && config.tls.is_none() && !proxied {
        warnings.push(format!(
            "tokens are sent unencrypted to `{}`: give --tls-cert and --tls-key, or --public-url \
             with the https:// URL of a proxy in front of it",
            config.listen
        ));
    }
    warnings
}

/// Returns whether the file certainly has no token. The hub reports an unreadable file.
fn is_without_tokens(file: &Path) -> bool {
    hub_tokens::list(file).is_ok_and(|tokens| tokens.is_empty())
}

/// Derives a node name from the host name. Names should be unique, but need not be.
#[cfg(feature = "nats")]
fn this_host() -> Option<NodeName> {
    let system = rustix::system::uname();
    let name = system.nodename().to_str().ok()?;
    name.split('.').next()?.parse().ok()
}

/// Prints the URL for launchers: one line, and nothing after it.
fn announce(url: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{url}")
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")
}

/// Paths of a hub.
#[derive(Clone, Debug, Eq, PartialEq)]
struct HubPaths {
    /// Data directory.
    data_dir: PathBuf,
    /// Token file.
    token_file: PathBuf,
}

impl HubPaths {
    /// Finds the paths. Creates nothing.
    fn find(token_files: &TokenFileArgs, lookup: VariableLookup<'_>) -> anyhow::Result<Self> {
        let set = |name| lookup(name).filter(|value| !value.is_empty());
        let below_exec_home = || Some(PathBuf::from(set("EXEC_SERVER_HOME")?).join("hub"));
        let below_home = || Some(PathBuf::from(set("HOME")?).join(".local/share/exec-server/hub"));
        let explicit = token_files.data_dir.clone();
        let data_dir = explicit.or_else(below_exec_home).or_else(below_home);
        let data_dir = data_dir.context("HOME is not set: give --data-dir")?;
        let token_file = token_files.token_file.clone();
        Ok(Self {
            token_file: token_file.unwrap_or_else(|| data_dir.join("tokens.toml")),
            data_dir,
        })
    }
}

/// Resident memory below which nothing is released: that of a hub with some hundred sockets.
const MIN_RESIDENT_BYTES: u64 = 48 << 20;
/// Change of resident memory that counts.
const MIN_CHANGE_BYTES: u64 = 4 << 20;
/// Delay before memory is released after a change.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval while nothing changes.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Releases freed memory while polled: soon after the resident memory has changed, and with growing
/// backoff while there is nothing to release.
async fn release_memory() -> Infallible {
    let mut backoff = ReleaseBackoff::default();
    loop {
        sleep(CHECK_INTERVAL).await;
        let Some(before) = resident_bytes() else {
            // Without /proc the size is unknown, and memory is kept.
            return std::future::pending().await;
        };
        if backoff.is_due(before) {
            // Runs on the blocking pool, because it may wait for other threads.
            drop(spawn_blocking(release_free_memory).await);
            backoff.released(before, resident_bytes().unwrap_or(before));
        }
    }
}

/// Backoff of memory release. Checked every [`CHECK_INTERVAL`].
#[derive(Debug)]
struct ReleaseBackoff {
    /// Resident memory after the last release.
    resident_after: u64,
    delay: Duration,
    elapsed: Duration,
}

impl Default for ReleaseBackoff {
    fn default() -> Self {
        Self {
            resident_after: 0,
            delay: CHECK_INTERVAL,
            elapsed: Duration::ZERO,
        }
    }
}

impl ReleaseBackoff {
    fn is_due(&mut self, resident: u64) -> bool {
        self.elapsed += CHECK_INTERVAL;
        if resident < MIN_RESIDENT_BYTES {
            return false;
        }
        if resident.abs_diff(self.resident_after) >= MIN_CHANGE_BYTES {
            self.delay = CHECK_INTERVAL;
        }
        self.elapsed >= self.delay
    }

    fn released(&mut self, before: u64, after: u64) {
        self.resident_after = after;
        self.elapsed = Duration::ZERO;
        self.delay = match before.saturating_sub(after) >= MIN_CHANGE_BYTES {
            true => CHECK_INTERVAL,
            false => (self.delay * 2).min(MAX_BACKOFF),
        };
    }
}

/// Creates, lists or revokes tokens. Writes results to `out` and messages to `messages`. Blocks.
///
/// # Errors
/// When the token file cannot be read or written, or the request is invalid.
pub fn edit_tokens(
    command: &TokenCommand,
    lookup: VariableLookup<'_>,
    out: &mut dyn Write,
    messages: &mut dyn Write,
) -> anyhow::Result<()> {
    match command {
        TokenCommand::Create(flags) => create_token(flags, lookup, out, messages),
        TokenCommand::List(flags) => list_tokens(flags, lookup, out),
        TokenCommand::Revoke(flags) => revoke_token(flags, lookup, messages),
    }
}

fn create_token(
    flags: &MakeToken,
    lookup: VariableLookup<'_>,
    out: &mut dyn Write,
    messages: &mut dyn Write,
) -> anyhow::Result<()> {
    let paths = HubPaths::find(&flags.token_files, lookup)?;
    let now = Timestamp::now();
    let new = NewToken {
        principal: flags.name.clone(),
        roles: match flags.role[..] {
            [] => RoleSet::default(),
            ref roles => RoleSet::new(roles.iter().copied()),
        },
        environments: EnvironmentGlobs::new(flags.environment.clone())?,
        expires_at: flags.expires_in.map(|span| now.plus(span.0)),
    };
    // Created before the token, so that no token is lost.
    let file = match &flags.out {
        Some(path) => Some(TokenOutput::create(path, flags.force)?),
        None => None,
    };
    let (entry, token) = hub_tokens::create(&paths.token_file, new, now)?;
    let row = TokenRow::of(&entry);
    let until = row.expires_at.unwrap_or_else(|| "it is revoked".to_owned());
    let roles = row.roles.join(", ");
    writeln!(
        messages,
        "token {} for {}: {roles}; until {until}",
        row.id, row.principal
    )?;
    let written = match file {
        Some(file) => file.write(token.expose()),
        None => writeln!(out, "{}", token.expose()).and_then(|()| out.flush()),
    };
    written.with_context(|| format!("cannot write the token; revoke {}", row.id))
}

/// File for a new token that only this account can read. Dropping it before it is written leaves
/// nothing behind.
struct TokenOutput {
    file: File,
    /// Temporary path until it is written.
    temporary: PathBuf,
    path: PathBuf,
    is_written: bool,
}

impl TokenOutput {
    /// Creates the file. An existing one is kept; [`TokenOutput::write`] replaces it if `replace`
    /// is set, otherwise it is an error.
    fn create(path: &Path, replace: bool) -> anyhow::Result<Self> {
        let mut temporary = path.to_owned();
        if replace {
            temporary
                .as_mut_os_string()
                .push(format!(".{}", std::process::id()));
        }
        let mut options = OpenOptions::new();
        // Independent of the umask, only this account can read it.
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&temporary).map_err(|error| {
            if error.kind() == io::ErrorKind::AlreadyExists && !replace {
                return anyhow!("`{}` exists; give --force to replace it", path.display());
            }
            anyhow!(error).context(format!("cannot create `{}`", temporary.display()))
        })?;
        Ok(Self {
            file,
            temporary,
            path: path.to_owned(),
            is_written: false,
        })
    }

    fn write(mut self, token: &str) -> io::Result<()> {
        writeln!(self.file, "{token}")?;
        self.file.sync_all()?;
        if self.temporary != self.path {
            fs::rename(&self.temporary, &self.path)?;
        }
        self.is_written = true;
        Ok(())
    }
}

impl Drop for TokenOutput {
    fn drop(&mut self) {
        if !self.is_written {
            // The error already reports the failure.
            drop(fs::remove_file(&self.temporary));
        }
    }
}

fn list_tokens(
    flags: &ListTokens,
    lookup: VariableLookup<'_>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let paths = HubPaths::find(&flags.token_files, lookup)?;
    let entries = hub_tokens::list(&paths.token_file)?;
    let rows = entries.iter().map(TokenRow::of);
    if flags.json {
        let rows: Vec<_> = rows.collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(());
    }
    let mut table = TextTable::new(&[
        "ID",
        "PRINCIPAL",
        "ROLES",
        "ENVIRONMENTS",
        "CREATED",
        "EXPIRES",
        "INVITE UNTIL",
    ]);
    for row in rows {
        table.push([
            row.id,
            row.principal,
            row.roles.join(","),
            row.environments.join(","),
            row.created_at,
            row.expires_at.unwrap_or_default(),
            row.invite_expires_at.unwrap_or_default(),
        ]);
    }
    write!(out, "{table}")?;
    Ok(())
}

fn revoke_token(
    flags: &RevokeToken,
    lookup: VariableLookup<'_>,
    messages: &mut dyn Write,
) -> anyhow::Result<()> {
    let paths = HubPaths::find(&flags.token_files, lookup)?;
    let id = TokenId::new(&flags.id).context("that is not a token id")?;
    let entry = hub_tokens::revoke(&paths.token_file, &id)?;
    writeln!(
        messages,
        "token {} of {} is revoked",
        entry.id, entry.principal
    )?;
    Ok(())
}

/// Token as listed.
#[derive(Debug, Serialize)]
struct TokenRow {
    id: String,
    principal: String,
    roles: Vec<String>,
    environments: Vec<String>,
    created_at: String,
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    invite_expires_at: Option<String>,
}

impl TokenRow {
    fn of(entry: &TokenEntry) -> Self {
        Self {
            id: entry.id.to_string(),
            principal: entry.principal.to_string(),
            roles: entry.roles.iter().map(|role| role.to_string()).collect(),
            environments: entry.environments.globs().to_vec(),
            created_at: seconds(entry.created_at),
            expires_at: entry.expires_at.map(seconds),
            invite_expires_at: entry.invite_expires_at.map(seconds),
        }
    }
}

/// Formats a time without milliseconds.
fn seconds(at: Timestamp) -> String {
    Timestamp::from_seconds(at.seconds())
        .rfc3339()
        .replace(".000Z", "Z")
}
