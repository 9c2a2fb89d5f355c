//! The hub as a whole: its parts, start-up and shutdown.
//! Invariant: a started hub serves requests. Any failure is an error of the start, with nothing
//! left running.
//! Elsewhere: the endpoints (`registry`, `rendezvous`, `direct`, `admin`).

mod endpoints;

use std::{fs, io, net::SocketAddr, path::PathBuf, sync::Arc};

use exec_transport::{
    auth::SecretTooShort,
    http::{AllowedHosts, PendingLimits, site::SiteOptions},
    listen::ListenUrl,
    listener::Listener,
    tls::{self, TlsError},
    websocket::socket::{Socket, SocketLimits},
};
use tokio::{
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use self::endpoints::{Endpoints, Upgrade};
use crate::{
    admin::Admin,
    audit::{Audit, AuditError},
    circuit::Ending,
    circuit_dialer::Exchange,
    config::{HubConfig, JwtConfig},
    direct::{AccessKeys, Direct, KeysError},
    executor_table::Switch,
    limits,
    metrics::Metrics,
    nats::{Mesh, NatsError},
    rate_limit::RateLimits,
    registry::{Gate, Registry, Services},
    rendezvous::Rendezvous,
    store::{NodeName, OpenError, RedbStore, Store, StoreError, Timestamp},
    tokens::{Authenticator, JwtAuthority, ReadError, Tokens},
    url::{PublicUrl, Signer},
};

/// A running hub. Dropping it stops listening and closes all connections.
#[derive(Debug)]
pub struct Hub {
    address: SocketAddr,
    scheme: &'static str,
    stopping: watch::Sender<bool>,
    switch: Arc<Switch>,
    mesh: Option<Arc<Mesh>>,
    gate: Arc<Gate>,
    requests: Busy,
    sockets: Busy,
    /// The listener and the file watcher.
    tasks: JoinSet<()>,
}

impl Hub {
    /// Starts a hub. It serves when this returns.
    ///
    /// # Errors
    /// See [`StartError`]. Dropping the future leaves nothing running.
    pub async fn start(config: HubConfig) -> Result<Self, StartError> {
        start(config).await
    }

    /// Returns the listening address with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the listening address as a URL.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Shuts down gracefully within a time limit: drains requests and closes websockets so that
    /// clients reconnect.
    pub async fn stop(mut self) {
        self.stopping.send_replace(true);
        self.switch.close_all(Ending::Stopping);
        let ended = async {
            self.requests.idle().await;
            self.gate.idle().await;
            self.sockets.idle().await;
            if let Some(mesh) = &self.mesh {
                mesh.leave().await;
            }
        };
        if timeout(limits::STOP, ended).await.is_err() {
            tracing::warn!("dropping connections that did not drain in time");
        }
        self.tasks.shutdown().await;
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // Websockets have their own tasks.
        self.stopping.send_replace(true);
        self.switch.close_all(Ending::Stopping);
    }
}

/// Default node name of a single hub.
const ALONE: &str = "hub";

/// Everything that is read from files, before anything runs.
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
    /// Opens all files. Blocks.
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

/// Store and circuit dialer: of a single hub, or of a cluster node.
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
        // `Files::open` opened the store unless NATS is configured.
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

async fn start(config: HubConfig) -> Result<Hub, StartError> {
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
            // Boxed, so that the tasks of relay websockets, which are far more numerous, stay
            // small.
            let served = Box::pin(direct.serve(upgrade, socket.into_link(peer.to_string())));
            tokio::select! {
                () = served => {}
                _ = stopping.wait_for(|stopping| *stopping) => {}
            }
        }
    }
}

/// Returns the host names that requests may use.
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

/// Counts tasks in progress. Clones share the count.
#[derive(Clone, Debug)]
struct Busy(watch::Sender<usize>);

impl Default for Busy {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Busy {
    /// Counts a task until the guard is dropped.
    fn begin(&self) -> Guard {
        self.0.send_modify(|count| *count += 1);
        Guard(self.clone())
    }

    /// Resolves when no task is in progress.
    async fn idle(&self) {
        // `self` holds the sender, so the channel is open.
        drop(self.0.subscribe().wait_for(|count| *count == 0).await);
    }
}

/// Guard of a task in progress.
#[derive(Debug)]
struct Guard(Busy);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// Why a hub did not start. Nothing is left running in any of these cases.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Host: binding the address failed.
    #[error("failed to listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Caller: the certificate or key is invalid.
    #[error("failed to set up TLS")]
    Tls(#[from] TlsError),
    /// Caller: the token file is invalid.
    #[error("invalid token file")]
    Tokens(#[from] ReadError),
    /// Caller: the JWT secret cannot be read.
    #[error("failed to read the JWT secret {path}")]
    JwtSecret {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Caller: the JWT secret is too short.
    #[error("invalid JWT secret {path}")]
    WeakJwtSecret {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SecretTooShort,
    },
    /// Caller: the access key file is invalid.
    #[error("invalid access key file")]
    AccessKeys(#[from] KeysError),
    /// Host: the embedded store cannot be opened.
    #[error("failed to open the store")]
    Open(#[from] OpenError),
    /// Host: the store failed.
    #[error("failed to use the store")]
    Store(#[from] StoreError),
    /// Host: joining the cluster failed.
    #[error("failed to join the cluster")]
    Nats(#[from] NatsError),
    /// Host: the audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// Us: a start-up task was cancelled.
    #[error("start was interrupted")]
    Interrupted,
}
