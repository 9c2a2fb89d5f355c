//! Running a hub until it is told to stop.

use std::{io::Write, path::Path};

use anyhow::Context;
use exec_hub::{
    config::{HubConfig, JwtConfig, TlsFiles},
    hub::Hub,
    nats::NatsConfig,
    store::NodeName,
    tokens,
    url::PublicUrl,
};

use super::{memory::release_memory, places::Places};
use crate::{
    cli::HubFlags,
    config::Lookup,
    shutdown_signal::{StdinClose, Stop},
};

/// Runs a hub until SIGTERM or SIGINT. Its URL is printed to stdout once it is bound.
///
/// It wants a runtime with several threads. Dropping the future cuts every connection.
///
/// # Errors
/// When it cannot listen, or what it keeps or is given cannot be used.
pub async fn run_hub(flags: &HubFlags, lookup: Lookup<'_>) -> anyhow::Result<()> {
    let mut stop = Stop::new(StdinClose::Ignored)?;
    let config = config(flags, lookup)?;
    for warning in warnings(&config, flags) {
        tracing::error!("{warning}");
    }
    let starting = Hub::start(config);
    let hub = tokio::select! {
        hub = starting => hub?,
        () = stop.asked() => return Ok(()),
    };
    announce(&hub.url())?;
    tokio::select! {
        () = stop.asked() => {}
        never = release_memory() => match never {},
    }
    tokio::select! {
        () = hub.stop() => {}
        // Asked twice: at once.
        () = stop.asked() => {}
    }
    Ok(())
}

/// Puts flags and variables together.
pub(super) fn config(flags: &HubFlags, lookup: Lookup<'_>) -> anyhow::Result<HubConfig> {
    let places = Places::find(&flags.place, lookup)?;
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
pub(super) fn warnings(config: &HubConfig, flags: &HubFlags) -> Vec<String> {
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
    tokens::list(file).is_ok_and(|tokens| tokens.is_empty())
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
