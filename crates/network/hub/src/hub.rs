//! The hub as a whole: what it is made of, what it answers, how it starts and stops.
//! Invariant: a hub that has started serves; whatever would keep it from that is an error of the
//! start, with nothing left running.
//! Not here: what the endpoints do (`registry`, `rendezvous`, `direct`, `admin`).

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

/// A hub that runs. Dropping it takes no more connections and closes those there are.
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
    /// The listener, and what follows files.
    tasks: JoinSet<()>,
}

impl Hub {
    /// Starts a hub. When this returns, it serves.
    ///
    /// # Errors
    /// See [`StartError`]. Dropping the future leaves nothing running.
    pub async fn start(config: HubConfig) -> Result<Self, StartError> {
        start(config).await
    }

    /// Returns where it listens, with the port that was given.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns where it listens, as a URL.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Stops: requests are finished, sockets are told to come back, and both within bounds.
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
            tracing::warn!("connections are cut that did not end in time");
        }
        self.tasks.shutdown().await;
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // Sockets have tasks of their own.
        self.stopping.send_replace(true);
        self.switch.close_all(Ending::Stopping);
    }
}

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

/// Counts what goes on. Clones count together.
#[derive(Clone, Debug)]
struct Busy(watch::Sender<usize>);

impl Default for Busy {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Busy {
    /// Counts one more, until the guard is dropped.
    fn begin(&self) -> Guard {
        self.0.send_modify(|count| *count += 1);
        Guard(self.clone())
    }

    /// Resolves when nothing goes on.
    async fn idle(&self) {
        // The sender is here, so the channel is open.
        drop(self.0.subscribe().wait_for(|count| *count == 0).await);
    }
}

/// Something that goes on.
#[derive(Debug)]
struct Guard(Busy);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// Why a hub does not start. In every case nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Host: the address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Caller: the certificate or its key cannot be used.
    #[error("cannot serve TLS")]
    Tls(#[from] TlsError),
    /// Caller: the token file cannot be used.
    #[error("cannot use the token file")]
    Tokens(#[from] ReadError),
    /// Caller: the file of the JWT secret cannot be read.
    #[error("cannot read the JWT secret {path}")]
    JwtSecret {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Caller: the JWT secret is too short to be one.
    #[error("cannot use the JWT secret {path}")]
    WeakJwtSecret {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SecretTooShort,
    },
    /// Caller: the file of access keys cannot be used.
    #[error("cannot use the access keys")]
    AccessKeys(#[from] KeysError),
    /// Host: the embedded store cannot be opened.
    #[error("cannot open the store")]
    Open(#[from] OpenError),
    /// Host: the store does not work.
    #[error("cannot use the store")]
    Store(#[from] StoreError),
    /// Host: the other nodes cannot be joined.
    #[error("cannot join the other nodes")]
    Nats(#[from] NatsError),
    /// Host: the audit log cannot be written.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// We: a task of the start ended early.
    #[error("start was interrupted")]
    Interrupted,
}
