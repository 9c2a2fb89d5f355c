//! `exec-server hub`: running a hub, its tokens, and a look at what it knows.
//!
//! Everything that a hub is, is in `exec-hub`; here is where its files are, what is printed, and when it
//! stops. Invariant: a token is printed once, by whoever made it, and nothing secret ever else.

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
use exec_process::release_free_memory;
use tokio::{task::spawn_blocking, time::sleep};

use crate::{
    cli::{HubFlags, TokenFileArgs},
    config::VariableLookup,
    observe::resident_bytes,
    shutdown_signal::{ShutdownSignal, StdinClose},
};

pub use self::{environment_list::list_environments, tokens::edit_tokens};

/// Runs a hub until SIGTERM or SIGINT. Its URL is printed to stdout once it is bound.
///
/// It wants a runtime with several threads. Dropping the future cuts every connection.
///
/// # Errors
/// When it cannot listen, or what it keeps or is given cannot be used.
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
        // Asked twice: at once.
        () = stop.recv() => {}
    }
    Ok(())
}

/// Puts flags and variables together.
fn config(flags: &HubFlags, lookup: VariableLookup<'_>) -> anyhow::Result<HubConfig> {
    let places = HubPaths::find(&flags.place, lookup)?;
    let public_url = flags.public_url.as_ref();
    let public_url = public_url.map(|url| PublicUrl::fixed(&url.to_string()));
    let node = flags.node_name.clone();
    let nats = match &flags.nats {
        Some(servers) => {
            let node = node.clone().or_else(this_host);
            let node = node.context("the host's name is none for a hub: give --node-name")?;
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

/// What is odd about a hub, and may be meant.
fn warnings(config: &HubConfig, flags: &HubFlags) -> Vec<String> {
    let mut warnings = Vec::new();
    let file = config.token_file();
    if config.jwt.is_none() && is_without_tokens(&file) {
        warnings.push(format!(
            "nobody gets in: `{}` has no token; `exec-server hub token create` makes one, and needs \
             no restart",
            file.display()
        ));
    }
    let proxied = flags.public_url.as_ref();
    let proxied = proxied.is_some_and(|url| url.url().scheme() == "https");
    if !config.listen.ip().to_canonical().is_loopback() && config.tls.is_none() && !proxied {
        warnings.push(format!(
            "others can read tokens on their way to `{}`: give --tls-cert and --tls-key, or \
             --public-url with the https:// URL of a proxy before it",
            config.listen
        ));
    }
    warnings
}

/// Tells whether there is none for sure. What cannot be read is the hub's to refuse.
fn is_without_tokens(file: &Path) -> bool {
    hub_tokens::list(file).is_ok_and(|tokens| tokens.is_empty())
}

/// Names a hub after its host, as far as that is a name. No two must have the same, but may.
fn this_host() -> Option<NodeName> {
    let system = rustix::system::uname();
    let name = system.nodename().to_str().ok()?;
    name.split('.').next()?.parse().ok()
}

/// Tells launchers where the hub listens: one line, and nothing after it.
fn announce(url: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{url}")
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")
}

/// The files of a hub.
#[derive(Clone, Debug, Eq, PartialEq)]
struct HubPaths {
    /// The directory of the hub.
    data_dir: PathBuf,
    /// The file with the tokens.
    token_file: PathBuf,
}

impl HubPaths {
    /// Finds them. Nothing is made.
    fn find(place: &TokenFileArgs, lookup: VariableLookup<'_>) -> anyhow::Result<Self> {
        let set = |name| lookup(name).filter(|value| !value.is_empty());
        let ours = || Some(PathBuf::from(set("EXEC_SERVER_HOME")?).join("hub"));
        let accounts = || Some(PathBuf::from(set("HOME")?).join(".local/share/exec-server/hub"));
        let given = place.data_dir.clone();
        let data_dir = given.or_else(ours).or_else(accounts);
        let data_dir = data_dir.context("HOME is not set: give --data-dir")?;
        let token_file = place.token_file.clone();
        Ok(Self {
            token_file: token_file.unwrap_or_else(|| data_dir.join("tokens.toml")),
            data_dir,
        })
    }
}

/// Below this many bytes nothing is looked for: it is what a hub with some hundred sockets has.
const WORTHWHILE: u64 = 48 << 20;
/// A difference that counts as one.
const DIFFERENCE: u64 = 4 << 20;
/// How soon after a change memory is released.
const SOON: Duration = Duration::from_secs(2);
/// How often it is tried while nothing changes.
const SELDOM: Duration = Duration::from_secs(60);

/// Releases freed memory for as long as it is polled: soon after the resident memory has changed, and
/// less and less often while there is nothing to release.
async fn release_memory() -> Infallible {
    let mut pace = ReleaseBackoff::default();
    loop {
        sleep(SOON).await;
        let Some(before) = resident_bytes() else {
            // Without /proc nobody knows; then the memory stays.
            return std::future::pending().await;
        };
        if pace.is_due(before) {
            // Its thread may have to wait for others, which then do not have to wait for it.
            drop(spawn_blocking(release_free_memory).await);
            pace.released(before, resident_bytes().unwrap_or(before));
        }
    }
}

/// When to release memory. Looked at every [`SOON`].
#[derive(Debug)]
struct ReleaseBackoff {
    /// What was left after the last time.
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
