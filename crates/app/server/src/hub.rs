//! `exec-server hub`: runs a hub, edits its tokens, and lists its environments.
//!
//! The hub itself is in `exec-hub`; here are its paths, its output and its shutdown. Invariant: a
//! token is printed once, by the command that created it; no other secret is ever printed.

mod environment_list;
#[cfg(test)]
mod tests;
mod tokens;

use std::{
    convert::Infallible,
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use exec_hub::{
    config::{HubConfig, JwtConfig, TlsFiles},
    hub::Hub,
    nats::NatsConfig,
    store::NodeName,
    tokens as hub_tokens,
    url::PublicUrl,
};
use exec_spawn::release_free_memory;
use tokio::{task::spawn_blocking, time::sleep};

use crate::{
    cli::{HubFlags, TokenFileArgs},
    config::VariableLookup,
    shutdown_signal::{ShutdownSignal, StdinClose},
    telemetry::resident_bytes,
};

pub use self::{environment_list::list_environments, tokens::edit_tokens};

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
    let places = HubPaths::find(&flags.token_files, lookup)?;
    let public_url = flags.public_url.as_ref();
    let public_url = public_url.map(|url| PublicUrl::fixed(&url.to_string()));
    let node = flags.node_name.clone();
    let nats = match &flags.nats {
        Some(servers) => {
            let node = node.clone().or_else(this_host);
            let node = node.context("the host name is not a valid node name: give --node-name")?;
            let mut nats = NatsConfig::new(servers.clone(), node);
            nats.credentials_file.clone_from(&flags.nats_credentials);
            nats.ca_file.clone_from(&flags.nats_ca);
            nats.replicas = flags.nats_replicas.unwrap_or_default();
            if let Some(prefix) = &flags.nats_prefix {
                nats.prefix = prefix.clone();
            }
            Some(nats)
        }
        None => None,
    };
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
        token_file: Some(places.token_file),
        jwt: flags.jwt_secret_file.as_ref().map(|file| JwtConfig {
            secret_file: file.clone(),
            issuer: flags.jwt_issuer.clone(),
            audience: flags.jwt_audience.clone(),
        }),
        tls,
        nats,
        node,
        audit_log: flags.audit_log.clone(),
        access_keys: flags.access_keys.clone(),
        ..HubConfig::new(flags.listen, places.data_dir)
    })
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
        let ours = || Some(PathBuf::from(set("EXEC_SERVER_HOME")?).join("hub"));
        let accounts = || Some(PathBuf::from(set("HOME")?).join(".local/share/exec-server/hub"));
        let given = token_files.data_dir.clone();
        let data_dir = given.or_else(ours).or_else(accounts);
        let data_dir = data_dir.context("HOME is not set: give --data-dir")?;
        let token_file = token_files.token_file.clone();
        Ok(Self {
            token_file: token_file.unwrap_or_else(|| data_dir.join("tokens.toml")),
            data_dir,
        })
    }
}

/// Resident memory below which nothing is released: that of a hub with some hundred sockets.
const WORTHWHILE: u64 = 48 << 20;
/// Change of resident memory that counts.
const DIFFERENCE: u64 = 4 << 20;
/// Delay before memory is released after a change.
const SOON: Duration = Duration::from_secs(2);
/// Interval while nothing changes.
const SELDOM: Duration = Duration::from_secs(60);

/// Releases freed memory while polled: soon after the resident memory has changed, and with growing
/// backoff while there is nothing to release.
async fn release_memory() -> Infallible {
    let mut pace = ReleaseBackoff::default();
    loop {
        sleep(SOON).await;
        let Some(before) = resident_bytes() else {
            // Without /proc the size is unknown, and memory is kept.
            return std::future::pending().await;
        };
        if pace.is_due(before) {
            // Runs on the blocking pool, because it may wait for other threads.
            drop(spawn_blocking(release_free_memory).await);
            pace.released(before, resident_bytes().unwrap_or(before));
        }
    }
}

/// Backoff of memory release. Checked every [`SOON`].
#[derive(Debug)]
struct ReleaseBackoff {
    /// Resident memory after the last release.
    left: u64,
    wait: Duration,
    waited: Duration,
}

impl Default for ReleaseBackoff {
    fn default() -> Self {
        Self {
            left: 0,
            wait: SOON,
            waited: Duration::ZERO,
        }
    }
}

impl ReleaseBackoff {
    fn is_due(&mut self, resident: u64) -> bool {
        self.waited += SOON;
        if resident < WORTHWHILE {
            return false;
        }
        if resident.abs_diff(self.left) >= DIFFERENCE {
            self.wait = SOON;
        }
        self.waited >= self.wait
    }

    fn released(&mut self, before: u64, after: u64) {
        self.left = after;
        self.waited = Duration::ZERO;
        self.wait = match before.saturating_sub(after) >= DIFFERENCE {
            true => SOON,
            false => (self.wait * 2).min(SELDOM),
        };
    }
}
