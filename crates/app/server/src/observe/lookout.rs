//! A listener for those who watch this server from this machine.

use std::sync::{Arc, atomic::AtomicBool};

use anyhow::Context;
use exec_transport::{
    http::{AllowedHosts, Exposition, HostNames, Lookout, PendingLimits, site::SiteOptions},
    listen::ListenUrl,
    listener::Listener,
};

use crate::config::MetricsAddress;

/// Connections that may be open at once: those who watch are few.
const MAX_CONNECTIONS: usize = 64;

/// Binds the listener, and returns what serves it until it is dropped.
pub(crate) async fn look_out(
    address: MetricsAddress,
    metrics: Exposition,
    draining: Arc<AtomicBool>,
    names: &HostNames,
) -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let address = address.address();
    let listener = Listener::bind_tcp(address, false)
        .await
        .with_context(|| format!("cannot listen on {address} for --metrics-listen"))?;
    if let ListenUrl::Ws(address) = listener.address() {
        tracing::info!(%address, "metrics are served");
    }
    let site = Arc::new(Lookout { metrics, draining });
    let options = SiteOptions {
        max_connections: 0,
        pending: PendingLimits {
            max_connections: MAX_CONNECTIONS,
            max_per_address: MAX_CONNECTIONS,
            ..PendingLimits::default()
        },
        hosts: AllowedHosts::new(names.iter()),
        ..SiteOptions::default()
    };
    Ok(listener.serve_site(site, None, options, |never, _| match never {}))
}
