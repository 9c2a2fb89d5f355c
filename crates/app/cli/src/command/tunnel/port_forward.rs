//! Listens at one end of tunnels and moves bytes between sockets of this machine and the network of
//! an environment.
//!
//! Invariant: the end of one direction is forwarded as an end, and a broken connection as a broken
//! one. The number of connections is bounded; more wait in the listener's backlog.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use exec_env::tunnel::{
    EnvironmentNetwork, TunnelError, TunnelListener, TunnelStream, TunnelTarget,
};
use exec_local::tunnel_socket::TunnelSocket;
use exec_wire::{id::ProcessId, tunnel::TunnelHost};
use tokio::{
    io::copy_bidirectional_with_sizes,
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::command::{failure::CommandFailure, tunnel::tunnel_spec::TunnelSpec};

/// Connections of one command at once: two file descriptors each at most.
const MAX_CONNECTIONS: usize = 1024;
/// Connections that wait while the maximum is open.
const BACKLOG: u32 = 1024;
/// Buffer of each direction of a connection: one chunk of a tunnel.
const BUFFER_BYTES: usize = 64 << 10;
/// Pause after a failed accept, such as for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Limit for a connection from this machine to the target of a reverse tunnel.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long connections may go on after the command that they belong to.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Messages for the user that have not been printed yet. More are dropped.
const MAX_NOTICES: usize = 64;

/// Messages for the user, in order.
pub(crate) type NoticeReceiver = mpsc::Receiver<ForwardNotice>;

/// Message for the user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ForwardNotice {
    /// A port of a process is reachable on this machine.
    Opened(ForwardedPort),
    /// A connection failed, or a port cannot be forwarded.
    Problem(String),
}

/// A port of a process, and its address on this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ForwardedPort {
    /// Port of the process.
    pub(crate) port: u16,
    /// Address on this machine.
    pub(crate) address: SocketAddr,
    /// The program, if known.
    pub(crate) program: Option<String>,
}

impl fmt::Display for ForwardNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened(ForwardedPort {
                port,
                address,
                program,
            }) => {
                write!(f, "port {port}")?;
                if let Some(program) = program {
                    write!(f, " ({program})")?;
                }
                write!(f, " is at {}", url(*address))
            }
            Self::Problem(text) => f.write_str(text),
        }
    }
}

/// Returns a receiver that never receives a message.
pub(crate) fn no_notices() -> NoticeReceiver {
    mpsc::channel(1).1
}

/// Runs port forwards. Dropping it closes them and their connections.
#[derive(Debug)]
pub(crate) struct ForwardSet {
    context: Arc<ForwardContext>,
    /// Dropped to stop listening.
    running: watch::Sender<()>,
    tasks: JoinSet<Result<(), TunnelError>>,
}

/// State shared by all port forwards of a command.
#[derive(Debug)]
pub(crate) struct ForwardContext {
    /// Network of the environment.
    pub(crate) network: Arc<dyn EnvironmentNetwork>,
    permits: Arc<Semaphore>,
    notices: mpsc::Sender<ForwardNotice>,
    /// Closed when listening stops.
    stopped: watch::Receiver<()>,
}

impl ForwardContext {
    /// Passes a message to the user.
    pub(crate) fn notify(&self, notice: ForwardNotice) {
        // If the queue is full, the notice is dropped.
        let _full = self.notices.try_send(notice);
    }

    /// Waits until listening stops. Cancel-safe.
    pub(crate) async fn stopped(&self) {
        let mut stopped = self.stopped.clone();
        while stopped.changed().await.is_ok() {}
    }

    async fn permit(&self) -> OwnedSemaphorePermit {
        match Arc::clone(&self.permits).acquire_owned().await {
            Ok(permit) => permit,
            // It is never closed.
            Err(_) => std::future::pending().await,
        }
    }
}

impl ForwardSet {
    /// Creates an empty set, and the receiver of its messages.
    pub(crate) fn new(network: Arc<dyn EnvironmentNetwork>) -> (Self, NoticeReceiver) {
        let (notices, received) = mpsc::channel(MAX_NOTICES);
        let (running, stopped) = watch::channel(());
        let context = ForwardContext {
            network,
            permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            notices,
            stopped,
        };
        let set = Self {
            context: Arc::new(context),
            running,
            tasks: JoinSet::new(),
        };
        (set, received)
    }

    /// Returns the shared state of the forwards.
    pub(crate) fn context(&self) -> Arc<ForwardContext> {
        Arc::clone(&self.context)
    }

    /// Runs a task with the set.
    pub(crate) fn spawn(
        &mut self,
        task: impl Future<Output = Result<(), TunnelError>> + Send + 'static,
    ) {
        self.tasks.spawn(task);
    }

    /// Starts a forward to the environment.
    pub(crate) fn forward(&mut self, forward: LocalForward) {
        self.spawn(forward.serve(self.context()));
    }

    /// Starts a forward from the environment.
    pub(crate) fn reverse(&mut self, reverse: ReverseForward) {
        self.spawn(reverse.serve(self.context()));
    }

    /// Waits until a forward fails. Cancel-safe.
    pub(crate) async fn failed(&mut self) -> TunnelError {
        while let Some(ended) = self.tasks.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error,
                Err(panic) => return TunnelError::Host(panic.to_string()),
            }
        }
        std::future::pending().await
    }

    /// Stops listening, and lets connections end for a moment.
    pub(crate) async fn drain(self) {
        let Self {
            running, mut tasks, ..
        } = self;
        drop(running);
        let ended = async { while tasks.join_next().await.is_some() {} };
        // Closes the remaining connections.
        let _late = timeout(DRAIN_TIMEOUT, ended).await;
    }
}

/// A port of this machine that leads to a port of the environment.
#[derive(Debug)]
pub(crate) struct LocalForward {
    listener: TcpListener,
    address: SocketAddr,
    target: TunnelTarget,
    name: String,
}

impl LocalForward {
    /// Listens. If the port is in use and the user did not name it, the system chooses another.
    pub(crate) fn bind(
        spec: &TunnelSpec,
        bind: Option<IpAddr>,
        process: Option<ProcessId>,
    ) -> Result<Self, CommandFailure> {
        let wanted = spec.listen_address(bind);
        let failed = |error: io::Error| bind_failure(spec, wanted, &error);
        let listener = match (listen(wanted), spec.listen_port) {
            (Err(error), None) if is_occupied(&error) => {
                listen(SocketAddr::new(wanted.ip(), 0)).map_err(failed)?
            }
            (listening, _) => listening.map_err(failed)?,
        };
        Ok(Self {
            address: listener.local_addr().map_err(failed)?,
            listener,
            target: TunnelTarget {
                host: spec.host.clone(),
                port: spec.port,
                process,
                sandbox: None,
            },
            name: spec.authority(),
        })
    }

    /// Returns the address that it listens on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Describes the port that it leads to.
    pub(crate) fn port(&self) -> ForwardedPort {
        ForwardedPort {
            port: self.target.port,
            address: self.address,
            program: None,
        }
    }

    /// Forwards connections until listening stops, and then until the last one ends.
    pub(crate) async fn serve(self, context: Arc<ForwardContext>) -> Result<(), TunnelError> {
        let report = Arc::new(ConnectionReport::new(&context, &self.name));
        let mut connections = JoinSet::new();
        let accept = async || {
            let permit = context.permit().await;
            (self.listener.accept().await, permit)
        };
        loop {
            tokio::select! {
                () = context.stopped() => break,
                Some(_) = connections.join_next() => {}
                (accepted, permit) = accept() => match accepted {
                    Ok((local, _)) => {
                        let local = local_socket(local);
                        let opened = context.network.open(self.target.clone());
                        let report = Arc::clone(&report);
                        connections.spawn(async move {
                            match opened.await {
                                Ok(far) => {
                                    report.connected();
                                    relay(local, far).await;
                                }
                                Err(error) => report.failed(&error),
                            }
                            drop(permit);
                        });
                    }
                    Err(error) => {
                        report.failed(&format_args!("cannot accept connections: {error}"));
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
        Ok(())
    }
}

/// A port of the environment that leads to a port that this machine reaches.
#[derive(Debug)]
pub(crate) struct ReverseForward {
    listener: Box<dyn TunnelListener>,
    host: String,
    port: u16,
    name: String,
}

impl ReverseForward {
    /// Listens in the environment, or in the network of a process.
    pub(crate) async fn bind(
        spec: &TunnelSpec,
        process: Option<ProcessId>,
        network: &dyn EnvironmentNetwork,
    ) -> Result<Self, CommandFailure> {
        let wanted = spec.listen_address(None);
        let target = TunnelTarget {
            host: spec.bind.and_then(tunnel_host),
            port: wanted.port(),
            process,
            sandbox: None,
        };
        let listener = network.listen(target).await.map_err(|error| {
            let failure = CommandFailure::from(error);
            let what = format!("cannot listen on {wanted} there: {}", failure.what);
            let next = failure.next.unwrap_or_else(|| {
                format!("`-R {}` lets the system choose the port", other_port(spec))
            });
            CommandFailure::new(failure.kind, what).next(next)
        })?;
        Ok(Self {
            listener,
            host: spec.host_name().to_owned(),
            port: spec.port,
            name: spec.authority(),
        })
    }

    /// Returns the port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.listener.port()
    }

    async fn serve(mut self, context: Arc<ForwardContext>) -> Result<(), TunnelError> {
        let report = Arc::new(ConnectionReport::new(&context, &self.name));
        let mut connections = JoinSet::new();
        loop {
            let mut accept = pin!(async {
                let permit = context.permit().await;
                (self.listener.accept().await, permit)
            });
            // Accepting goes on while connections end: a cancelled one could lose a connection.
            let accepted = loop {
                tokio::select! {
                    () = context.stopped() => break None,
                    Some(_) = connections.join_next() => {}
                    accepted = &mut accept => break Some(accepted),
                }
            };
            let Some((far, permit)) = accepted else {
                break;
            };
            let far = far?;
            let (host, port, report) = (self.host.clone(), self.port, Arc::clone(&report));
            connections.spawn(async move {
                let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port)));
                match connected.await.unwrap_or_else(|late| Err(late.into())) {
                    Ok(local) => {
                        report.connected();
                        relay(local_socket(local), far).await;
                    }
                    Err(error) => report.failed(&error),
                }
                drop(permit);
            });
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
        Ok(())
    }
}

/// Makes a connection of this machine the end of a tunnel.
fn local_socket(stream: TcpStream) -> TunnelSocket {
    // Costs latency only.
    let _slow = stream.set_nodelay(true);
    TunnelSocket::new(stream)
}

/// Moves bytes in both directions until both have ended, or one has failed. An end that has not
/// received everything then sees a broken connection.
async fn relay(mut local: TunnelSocket, mut far: Box<dyn TunnelStream>) {
    let moved = copy_bidirectional_with_sizes(&mut local, &mut far, BUFFER_BYTES, BUFFER_BYTES);
    // Dropping an end that is not complete resets its connection.
    let _failed = moved.await;
}

/// Reports failed connections: each reason once, until a connection succeeds.
#[derive(Debug)]
struct ConnectionReport {
    context: Arc<ForwardContext>,
    name: String,
    reported: Mutex<Option<String>>,
}

impl ConnectionReport {
    fn new(context: &Arc<ForwardContext>, name: &str) -> Self {
        Self {
            context: Arc::clone(context),
            name: name.to_owned(),
            reported: Mutex::new(None),
        }
    }

    fn connected(&self) {
        *self.reported.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn failed(&self, error: &dyn fmt::Display) {
        let text = error.to_string();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.as_ref() != Some(&text) {
            let notice = ForwardNotice::Problem(format!("{}: {text}", self.name));
            self.context.notify(notice);
            *reported = Some(text);
        }
    }
}

/// Returns a URL that leads to a listener on this machine.
pub(crate) fn url(address: SocketAddr) -> String {
    let host = match (address.ip(), address.ip().is_unspecified()) {
        (IpAddr::V4(_), true) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        (IpAddr::V6(_), true) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        (host, false) => host,
    };
    format!("http://{}", SocketAddr::new(host, address.port()))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Allows a port with connections in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Returns whether another port may work: this one is in use, or only root may listen on it.
fn is_occupied(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied
    )
}

fn bind_failure(spec: &TunnelSpec, wanted: SocketAddr, error: &io::Error) -> CommandFailure {
    let what = format!("cannot listen on {wanted}: {error}");
    let failure = CommandFailure::failed(what);
    match is_occupied(error) {
        true => failure.next(format_args!(
            "`{}` lets the system choose the port",
            other_port(spec)
        )),
        false => failure.next("--bind takes an address of this machine"),
    }
}

/// Returns the same tunnel with a port that the system chooses.
fn other_port(spec: &TunnelSpec) -> TunnelSpec {
    TunnelSpec {
        listen_port: Some(0),
        ..spec.clone()
    }
}

/// Returns an address as the host of a tunnel.
pub(crate) fn tunnel_host(address: IpAddr) -> Option<TunnelHost> {
    // An address is a valid host.
    TunnelHost::new(&address.to_string()).ok()
}
