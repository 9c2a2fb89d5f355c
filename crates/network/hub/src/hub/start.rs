//! Putting a hub together.

use std::{fs, sync::Arc};

use exec_transport::{
    http::{AllowedHosts, PendingLimits, site::SiteOptions},
    listen::ListenUrl,
    listener::Listener,
    tls,
    websocket::socket::{Socket, SocketLimits},
};
use tokio::{
    sync::watch,
    task::{JoinSet, spawn_blocking},
};
use tokio_rustls::TlsAcceptor;

use super::{
    Hub, StartError,
    busy::Busy,
    site::{Endpoints, Upgrade},
};
use crate::{
    admin::Admin,
    audit::Audit,
    config::{HubConfig, JwtConfig},
    direct::{AccessKeys, Direct},
    exchange::Exchange,
    limits,
    metrics::Metrics,
    nats::Mesh,
    rate::RateLimits,
    registry::{Gate, Registry, Services},
    rendezvous::Rendezvous,
    store::{NodeName, RedbStore, Store, Timestamp},
    switch::Switch,
    tokens::{Authenticator, JwtAuthority, Tokens},
    url::{PublicUrl, Signer},
};

/// What a hub is called that nobody named.
const ALONE: &str = "hub";

/// What is read from files, all of it before anything runs.
struct Files {
    tls: Option<TlsAcceptor>,
    hosts: AllowedHosts,
    tokens: Tokens,
    jwt: Option<JwtAuthority>,
    audit: Audit,
    keys: Option<AccessKeys>,
    /// `None` with NATS.
    store: Option<RedbStore>,
}

impl Files {
    /// Blocks.
    fn open(config: &HubConfig) -> Result<Self, StartError> {
        let tls = match &config.tls {
            Some(files) => Some(tls::acceptor(&files.certificates, &files.key)?),
            None => None,
        };
        Ok(Self {
            tls,
            hosts: hosts(config)?,
            tokens: Tokens::open(&config.token_file())?,
            jwt: config.jwt.as_ref().map(authority).transpose()?,
            audit: match &config.audit_log {
                Some(path) => Audit::file(path)?,
                None => Audit::tracing(),
            },
            keys: match &config.access_keys {
                Some(path) => Some(AccessKeys::read(path)?),
                None => None,
            },
            store: match config.nats {
                Some(_) => None,
                None => Some(RedbStore::open(&config.data_dir, Timestamp::now())?),
            },
        })
    }
}

fn authority(config: &JwtConfig) -> Result<JwtAuthority, StartError> {
    let path = &config.secret_file;
    let secret = fs::read(path).map_err(|source| StartError::JwtSecret {
        path: path.clone(),
        source,
    })?;
    let (issuer, audience) = (config.issuer.clone(), config.audience.clone());
    JwtAuthority::new(&secret, issuer, audience).map_err(|source| StartError::WeakJwtSecret {
        path: path.clone(),
        source,
    })
}

/// How this hub finds executors and remembers things: alone, or with other nodes.
struct Backing {
    store: Arc<dyn Store>,
    exchange: Arc<dyn Exchange>,
    node: NodeName,
    mesh: Option<Arc<Mesh>>,
}

impl Backing {
    async fn new(
        config: &HubConfig,
        store: Option<RedbStore>,
        switch: &Arc<Switch>,
    ) -> Result<Self, StartError> {
        if let Some(nats) = &config.nats {
            let mesh = Arc::new(Mesh::join(nats, Arc::clone(switch)).await?);
            return Ok(Self {
                store: mesh.store(),
                exchange: Arc::clone(&mesh) as Arc<dyn Exchange>,
                node: mesh.node().clone(),
                mesh: Some(mesh),
            });
        }
        // Without NATS the file was opened; without the file there is nothing to serve.
        let store = store.ok_or(StartError::Interrupted)?;
        Ok(Self {
            store: Arc::new(store),
            exchange: Arc::clone(switch) as Arc<dyn Exchange>,
            node: match &config.node {
                Some(node) => node.clone(),
                None => ALONE.parse().map_err(|_| StartError::Interrupted)?,
            },
            mesh: None,
        })
    }
}

pub(super) async fn start(config: HubConfig) -> Result<Hub, StartError> {
    let opening = config.clone();
    let files = spawn_blocking(move || Files::open(&opening))
        .await
        .map_err(|_| StartError::Interrupted)??;
    let switch = Arc::new(Switch::default());
    let backing = Backing::new(&config, files.store, &switch).await?;
    let signer = Arc::new(Signer::new(&backing.store.signing_key().await?));
    let listener = Listener::bind_tcp(config.listen, files.tls.is_some())
        .await
        .map_err(|source| StartError::Listen {
            address: config.listen,
            source,
        })?;
    let (address, scheme) = match *listener.address() {
        ListenUrl::Wss(address) => (address, "https"),
        ListenUrl::Ws(address) => (address, "http"),
        ListenUrl::Unix(_) | ListenUrl::Stdio | ListenUrl::Off => (config.listen, "http"),
    };
    let public = config.public_url.unwrap_or(match files.tls {
        Some(_) => PublicUrl::tls(),
        None => PublicUrl::plain(),
    });
    let metrics = Arc::new(Metrics::new());
    let (stopping, stop) = watch::channel(false);
    let authenticator = Authenticator::new(files.tokens.clone(), files.jwt);
    let rates = RateLimits::new(config.rates);
    let services = Services {
        gate: Arc::new(Gate::new(authenticator, rates, files.audit)),
        store: Arc::clone(&backing.store),
        exchange: Arc::clone(&backing.exchange),
        signer: Arc::clone(&signer),
        address: public,
    };
    let direct = Arc::new(Direct::new(services.clone(), files.keys));
    let rendezvous = Arc::new(Rendezvous {
        signer,
        store: backing.store,
        exchange: backing.exchange,
        switch: Arc::clone(&switch),
        node: backing.node,
        metrics: Arc::clone(&metrics),
        stopping: stop,
    });
    let (requests, sockets) = (Busy::default(), Busy::default());
    let endpoints = Endpoints {
        gate: Arc::clone(&services.gate),
        registry: Registry::new(services.clone(), Arc::clone(&direct)),
        admin: Admin::new(services, Arc::clone(&direct)),
        direct: Arc::clone(&direct),
        rendezvous: Arc::clone(&rendezvous),
        metrics,
        mesh: backing.mesh.clone(),
        requests: requests.clone(),
    };
    let gate = Arc::clone(&endpoints.gate);
    let mut tasks = JoinSet::new();
    let tokens = files.tokens;
    tasks.spawn(async move { tokens.follow().await });
    let serving = sockets.clone();
    tasks.spawn(async move {
        let on_upgrade = move |upgrade, socket| {
            let parts = (Arc::clone(&rendezvous), Arc::clone(&direct));
            let busy = serving.begin();
            tokio::spawn(async move {
                serve(upgrade, socket, parts).await;
                drop(busy);
            });
        };
        let site = Arc::new(endpoints);
        listener
            .serve_site(site, files.tls, options(files.hosts), on_upgrade)
            .await;
    });
    Ok(Hub {
        address,
        scheme,
        stopping,
        switch,
        mesh: backing.mesh,
        gate,
        requests,
        sockets,
        tasks,
    })
}

async fn serve(
    upgrade: Upgrade,
    socket: Socket,
    (rendezvous, direct): (Arc<Rendezvous>, Arc<Direct>),
) {
    match upgrade {
        Upgrade::Relay(admission) => rendezvous.serve(admission, socket).await,
        Upgrade::Direct(upgrade, peer) => {
            let mut stopping = rendezvous.stopping.clone();
            // Boxed: the tasks of the many other sockets need no room for it.
            let served = Box::pin(direct.serve(upgrade, socket.into_link(peer.to_string())));
            tokio::select! {
                () = served => {}
                _ = stopping.wait_for(|stopping| *stopping) => {}
            }
        }
    }
}

/// Which names of the hub requests may use.
fn hosts(config: &HubConfig) -> Result<AllowedHosts, StartError> {
    let public = config.public_url.as_ref().and_then(PublicUrl::host_name);
    let hosts = AllowedHosts::new(config.allowed_hosts.iter().chain(public));
    Ok(match &config.tls {
        Some(files) => hosts.with_certificate(&files.certificates)?,
        None => hosts,
    })
}

fn options(hosts: AllowedHosts) -> SiteOptions {
    SiteOptions {
        max_connections: limits::MAX_CONNECTIONS,
        pending: PendingLimits {
            max_connections: limits::MAX_PENDING_CONNECTIONS,
            max_per_address: limits::MAX_PENDING_PER_ADDRESS,
            ..PendingLimits::default()
        },
        hosts,
        socket: SocketLimits {
            max_message_bytes: limits::MAX_FRAME_BYTES,
            write_timeout: limits::STALL,
            ..SocketLimits::default()
        },
        ..SiteOptions::default()
    }
}
