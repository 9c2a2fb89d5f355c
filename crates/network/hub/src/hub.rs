//! The hub as a whole: its parts, start-up and shutdown.
//! Invariant: a started hub serves requests. Any failure is an error of the start, with nothing
//! left running.
//! Elsewhere: the endpoints (`registry`, `rendezvous`, `direct`, `admin`).

mod endpoints;

use std::{fs, io, net::SocketAddr, path::PathBuf, sync::Arc};

use exec_transport::{
    auth::SecretTooShort,
    http::{AllowedHosts, PendingLimits, service::HttpServiceOptions},
    listen_url::ListenUrl,
    listener::Listener,
    tls::{self, TlsError},
    websocket::socket::{BinarySocket, SocketLimits},
};
use tokio::{
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use self::endpoints::{HubEndpoints, HubUpgrade};
#[cfg(feature = "nats")]
use crate::nats::{NatsConfig, NatsError, NatsMesh};
use crate::{
    admin::AdminService,
    audit::{AuditError, AuditLog},
    circuit::{CircuitDialer, CloseReason, ClusterNode},
    config::{HubConfig, JwtConfig, TlsFiles},
    direct::{AccessKeys, AccessKeysError, DirectService},
    executor_table::ExecutorTable,
    invites::InviteService,
    limits,
    metrics::HubMetrics,
    rate_limit::RateLimiter,
    registry::{HubServices, RegistryService, RequestGate},
    rendezvous::RendezvousAcceptor,
    store::{NodeName, RedbStore, Store, StoreError, StoreOpenError, Timestamp},
    tokens::{
        ActiveTokens, HubTokenFileError, InviteTokenSigner, JwtAuthority, TokenAuthenticator,
    },
    url::{PublicUrl, UrlSigner},
};

/// A running hub. Dropping it stops listening and closes all connections.
#[derive(Debug)]
pub struct Hub {
    address: SocketAddr,
    scheme: &'static str,
    stopping: watch::Sender<bool>,
    executor_table: Arc<ExecutorTable>,
    cluster: Option<Arc<dyn ClusterNode>>,
    gate: Arc<RequestGate>,
    /// Each request in progress holds a receiver.
    requests: watch::Sender<()>,
    /// Each open websocket holds a receiver.
    sockets: watch::Sender<()>,
    /// The listener and the file watcher.
    tasks: JoinSet<()>,
}

impl Hub {
    /// Starts a hub. It serves when this returns.
    ///
    /// # Errors
    /// See [`HubStartError`]. Dropping the future leaves nothing running.
    pub async fn start(config: HubConfig) -> Result<Self, HubStartError> {
        let opening = config.clone();
        let files = spawn_blocking(move || HubFiles::open(&opening))
            .await
            .map_err(|_| HubStartError::Interrupted)??;
        let executor_table = Arc::new(ExecutorTable::default());
        let backend = HubBackend::new(&config, &executor_table).await?;
        let key = backend.store.signing_key().await?;
        let signer = Arc::new(UrlSigner::new(&key));
        let listener = Listener::bind_tcp(config.listen, files.tls.is_some())
            .await
            .map_err(|source| HubStartError::Listen {
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
        let metrics = Arc::new(HubMetrics::default());
        let (stopping, stop) = watch::channel(false);
        let invite_signer = InviteTokenSigner::new(&key);
        let authenticator = TokenAuthenticator::new(files.tokens.clone(), files.jwt);
        let authenticator = authenticator.with_invites(invite_signer.clone());
        let rates = RateLimiter::new(config.rates);
        let services = HubServices {
            gate: Arc::new(RequestGate::new(authenticator, rates, files.audit)),
            store: Arc::clone(&backend.store),
            dialer: Arc::clone(&backend.dialer),
            signer: Arc::clone(&signer),
            address: public,
        };
        let direct = Arc::new(DirectService::new(services.clone(), files.keys));
        let rendezvous = Arc::new(RendezvousAcceptor {
            signer,
            store: backend.store,
            dialer: backend.dialer,
            executor_table: Arc::clone(&executor_table),
            node: backend.node,
            metrics: Arc::clone(&metrics),
            stopping: stop,
        });
        let (requests, sockets) = (watch::Sender::new(()), watch::Sender::new(()));
        let endpoints = HubEndpoints {
            gate: Arc::clone(&services.gate),
            registry: RegistryService::new(services.clone(), Arc::clone(&direct)),
            invites: InviteService::new(services.clone(), invite_signer),
            admin: AdminService::new(services, Arc::clone(&direct)),
            direct: Arc::clone(&direct),
            rendezvous: Arc::clone(&rendezvous),
            metrics,
            cluster: backend.cluster.clone(),
            requests: requests.clone(),
        };
        let gate = Arc::clone(&endpoints.gate);
        let mut tasks = JoinSet::new();
        let tokens = files.tokens;
        tasks.spawn(async move { tokens.watch().await });
        let serving = sockets.clone();
        tasks.spawn(async move {
            let on_upgrade = move |upgrade, socket| {
                let parts = (Arc::clone(&rendezvous), Arc::clone(&direct));
                let busy = serving.subscribe();
                tokio::spawn(async move {
                    serve(upgrade, socket, parts).await;
                    drop(busy);
                });
            };
            let endpoints = Arc::new(endpoints);
            listener
                .serve_http(endpoints, files.tls, options(files.hosts), on_upgrade)
                .await;
        });
        Ok(Self {
            address,
            scheme,
            stopping,
            executor_table,
            cluster: backend.cluster,
            gate,
            requests,
            sockets,
            tasks,
        })
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
        self.executor_table.close_all(CloseReason::Stopping);
        let ended = async {
            self.requests.closed().await;
            self.gate.idle().await;
            self.sockets.closed().await;
            if let Some(cluster) = &self.cluster {
                cluster.leave().await;
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
        self.executor_table.close_all(CloseReason::Stopping);
    }
}

/// Default node name of a single hub.
const DEFAULT_NODE: &str = "hub";

/// Everything that is read from files, before anything runs, except for the store.
struct HubFiles {
    tls: Option<TlsAcceptor>,
    hosts: AllowedHosts,
    tokens: ActiveTokens,
    jwt: Option<JwtAuthority>,
    audit: AuditLog,
    keys: Option<AccessKeys>,
}

impl HubFiles {
    /// Opens all files. Blocks.
    fn open(config: &HubConfig) -> Result<Self, HubStartError> {
        let acceptor = |files: &TlsFiles| tls::acceptor(&files.certificates, &files.key);
        Ok(Self {
            tls: config.tls.as_ref().map(acceptor).transpose()?,
            hosts: hosts(config)?,
            tokens: ActiveTokens::open(&config.token_file())?,
            jwt: config.jwt.as_ref().map(authority).transpose()?,
            audit: match &config.audit_log {
                Some(path) => AuditLog::file(path)?,
                None => AuditLog::tracing(),
            },
            keys: config
                .access_keys
                .as_deref()
                .map(AccessKeys::read)
                .transpose()?,
        })
    }
}

fn authority(config: &JwtConfig) -> Result<JwtAuthority, HubStartError> {
    let path = &config.secret_file;
    let secret = fs::read(path).map_err(|source| HubStartError::JwtSecret {
        path: path.clone(),
        source,
    })?;
    let (issuer, audience) = (config.issuer.clone(), config.audience.clone());
    JwtAuthority::new(&secret, issuer, audience).map_err(|source| HubStartError::WeakJwtSecret {
        path: path.clone(),
        source,
    })
}

/// Store and circuit dialer: of a single hub, or of a cluster node.
struct HubBackend {
    store: Arc<dyn Store>,
    dialer: Arc<dyn CircuitDialer>,
    node: NodeName,
    cluster: Option<Arc<dyn ClusterNode>>,
}

impl HubBackend {
    async fn new(
        config: &HubConfig,
        executor_table: &Arc<ExecutorTable>,
    ) -> Result<Self, HubStartError> {
        #[cfg(feature = "nats")]
        if let Some(nats) = &config.nats {
            return Self::join_cluster(nats, executor_table).await;
        }
        let data_dir = config.data_dir.clone();
        let store = spawn_blocking(move || RedbStore::open(&data_dir, Timestamp::now()))
            .await
            .map_err(|_| HubStartError::Interrupted)??;
        Ok(Self {
            store: Arc::new(store),
            dialer: Arc::clone(executor_table) as Arc<dyn CircuitDialer>,
            node: match &config.node {
                Some(node) => node.clone(),
                None => DEFAULT_NODE
                    .parse()
                    .map_err(|_| HubStartError::Interrupted)?,
            },
            cluster: None,
        })
    }

    #[cfg(feature = "nats")]
    async fn join_cluster(
        config: &NatsConfig,
        executor_table: &Arc<ExecutorTable>,
    ) -> Result<Self, HubStartError> {
        let mesh = NatsMesh::join(config, Arc::clone(executor_table)).await?;
        let cluster: Arc<dyn ClusterNode> = Arc::new(mesh);
        Ok(Self {
            store: cluster.store(),
            dialer: Arc::clone(&cluster) as Arc<dyn CircuitDialer>,
            node: cluster.name().clone(),
            cluster: Some(cluster),
        })
    }
}

async fn serve(
    upgrade: HubUpgrade,
    socket: BinarySocket,
    (rendezvous, direct): (Arc<RendezvousAcceptor>, Arc<DirectService>),
) {
    match upgrade {
        HubUpgrade::Relay(admission) => rendezvous.serve(admission, socket).await,
        HubUpgrade::Direct(upgrade, peer) => {
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
fn hosts(config: &HubConfig) -> Result<AllowedHosts, HubStartError> {
    let public = config.public_url.as_ref().and_then(PublicUrl::host_name);
    let hosts = AllowedHosts::new(config.allowed_hosts.iter().chain(public));
    Ok(match &config.tls {
        Some(files) => hosts.with_certificate(&files.certificates)?,
        None => hosts,
    })
}

fn options(hosts: AllowedHosts) -> HttpServiceOptions {
    HttpServiceOptions {
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
        ..HttpServiceOptions::default()
    }
}

/// Why a hub did not start. Nothing is left running in any of these cases.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubStartError {
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
    Tokens(#[from] HubTokenFileError),
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
    AccessKeys(#[from] AccessKeysError),
    /// Host: the embedded store cannot be opened.
    #[error("failed to open the store")]
    Open(#[from] StoreOpenError),
    /// Host: the store failed.
    #[error("failed to use the store")]
    Store(#[from] StoreError),
    /// Host: joining the cluster failed.
    #[cfg(feature = "nats")]
    #[error("failed to join the cluster")]
    Nats(#[from] NatsError),
    /// Host: the audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// Us: a start-up task was cancelled.
    #[error("start was interrupted")]
    Interrupted,
}
