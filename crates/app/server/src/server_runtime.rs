//! Runs a server: builds the environment of this machine and its service, listens, accepts links,
//! and drains and shuts down on request.

use std::{
    future::pending,
    io::{IsTerminal, Write},
    num::NonZeroUsize,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use exec_journal::{StateDir, StateDirError};
use exec_service::{
    Concurrency, Durability, DurabilityDefault, RestoredCounts, Service, ServiceConfig,
};
use exec_transport::{
    http::{AllowedHosts, HttpEndpoint, MetricsEndpoint, PendingLimits},
    lines,
    link::{Link, LinkRole},
    listen_url::{ListenUrl, lock_path},
    listener::Listener,
    tls,
};
use exec_wire::initialize::ServerInfo;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::{JoinHandle, JoinSet},
    time::sleep,
};

#[cfg(feature = "otel")]
use crate::telemetry::continue_trace;
use crate::{
    config::{ConcurrentRequests, DurableConfig, ServerConfig},
    local_machine::{
        ExecServerRuntimePaths, LocalMachine, LocalMachineSettings, SocketDirectory, run_if_helper,
    },
    service_manager,
    shutdown_signal::{ShutdownSignal, StdinClose},
    telemetry::{MetricsRenderer, serve_metrics},
    upgrade::{Handover, Takeover, UpgradeControl},
};

/// Runs a server on `listen_url` with default settings.
///
/// # Errors
/// When the URL is invalid, other machines could reach it without authentication, or as for
/// [`run_main`].
pub async fn run_main_with_listen_url(
    listen_url: &str,
    paths: ExecServerRuntimePaths,
) -> anyhow::Result<()> {
    let config = ServerConfig {
        listen: listen_url.parse()?,
        ..ServerConfig::default()
    };
    run_main(config, paths).await
}

/// Runs a server until SIGTERM or SIGINT; on stdio, until its client disconnects; until the end of
/// stdin, if configured.
///
/// A websocket listener prints its URL to stdout once it is bound. Commands inherit the environment
/// of this process, as their policies say. Dropping the future closes the listener and every
/// connection, and kills running processes.
///
/// # Errors
/// When it cannot listen, other machines could reach it without authentication, or this machine cannot be inspected.
pub async fn run_main(config: ServerConfig, paths: ExecServerRuntimePaths) -> anyhow::Result<()> {
    config.check_exposure()?;
    anyhow::ensure!(
        config.tls.is_some() == matches!(config.listen, ListenUrl::Wss(_)),
        "a wss:// listener needs a certificate and a key, and others have none"
    );
    if config.listen.has_socket() {
        return run_listener(&config, &paths).await;
    }
    anyhow::ensure!(!config.takeover, "--takeover needs a listener");
    let mut runtime = ServerRuntime::new(&config, &paths, open_state(&config)?)?;
    // With stdio, the client speaks on stdin.
    let stdin = match config.listen == ListenUrl::Stdio {
        true => StdinClose::Ignored,
        false => config.stdin_close,
    };
    let mut stop = ShutdownSignal::new(stdin)?;
    runtime.refuse_upgrades("a server on stdio ends with its client: start another one instead");
    runtime.serve_metrics(&config).await?;
    runtime.restore().await?;
    runtime.machine.warm_up().await;
    service_manager::notify("READY=1");
    if config.listen == ListenUrl::Stdio {
        let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
        let link = lines::link(stdin, stdout, LinkRole::Server, "exec-server stdio");
        let service = runtime.service.clone();
        // Keeps running while the server drains, so that the client learns of the end of its
        // processes.
        runtime
            .tasks
            .spawn(async move { service.serve(link).await });
        tokio::select! {
            _ended = runtime.tasks.join_next() => {}
            () = stop.recv() => {}
        }
    } else {
        stop.recv().await;
    }
    runtime.shut_down(&mut stop).await;
    Ok(())
}

/// Runs a server that listens. One that cannot take over reports why to the old server.
async fn run_listener(config: &ServerConfig, paths: &ExecServerRuntimePaths) -> anyhow::Result<()> {
    let mut takeover = match config.takeover {
        true => Some(Takeover::open()?),
        false => None,
    };
    let outcome = serve_listener(config, paths, &mut takeover).await;
    if let (Err(error), Some(takeover)) = (&outcome, takeover) {
        takeover.fail(error).await;
    }
    outcome
}

/// Runs a server that listens, until it stops or another one has taken over. If a successor fails,
/// adopts everything again and goes on.
async fn serve_listener(
    config: &ServerConfig,
    paths: &ExecServerRuntimePaths,
    takeover: &mut Option<Takeover>,
) -> anyhow::Result<()> {
    let stdin = match config.takeover {
        true => StdinClose::Ignored,
        false => config.stdin_close,
    };
    let mut stop = ShutdownSignal::new(stdin)?;
    let mut inherited = None;
    if let Some(takeover) = &*takeover {
        check_takeover(config)?;
        inherited = Some(takeover.receive().await?);
    }
    let mut watchdog = JoinSet::new();
    watchdog.spawn(service_manager::feed_watchdog());
    let upgrade_error = Arc::default();
    let (mut announced, mut goes_on) = (config.takeover, false);
    loop {
        let (state, listener) = match inherited.take() {
            Some(handover) => {
                let listener = Listener::inherit(&handover.address, handover.listener)?;
                (inherit_state(config, handover.state_lock)?, listener)
            }
            None => (open_state(config)?, bind(&config.listen).await?),
        };
        let mut listener = match config.auth.is_required() || config.insecure_no_auth {
            true => listener,
            false => listener.for_own_account(),
        };
        let mut runtime = ServerRuntime::new(config, paths, state)?;
        // What can fail comes before the processes are adopted: dropping them would kill them.
        match runtime.serve_metrics(config).await {
            Err(error) if goes_on => tracing::error!(error = format!("{error:#}"), "no metrics"),
            served => served?,
        }
        let endpoint = http_endpoint(config, &runtime)?;
        let tls = match &config.tls {
            Some(paths) => Some(tls::acceptor(&paths.cert, &paths.key)?),
            None => None,
        };
        runtime.restore().await?;
        if !std::mem::replace(&mut announced, true) {
            if let Err(error) = announce(listener.address()) {
                runtime.service.hand_over(std::future::ready(())).await;
                return Err(error);
            }
            explain(listener.address(), config);
        }
        tracing::info!(address = %listener.address(), "listening");
        let (successors, mut ready) = mpsc::channel(1);
        let obstacle = upgrade_obstacle(config, &runtime);
        let error = Arc::clone(&upgrade_error);
        let control = UpgradeControl::new(successors, obstacle, error);
        runtime.service.set_control(Arc::new(control));
        // Nothing below fails. Until here, the files belong to the old server.
        listener.claim();
        let links = runtime.serve_links();
        let (stop_accepting, stopped) = oneshot::channel();
        let stopped = async { drop::<Result<(), _>>(stopped.await) };
        // Keeps running while the server drains: alive, but not ready.
        let mut listening = ListenerTask::spawn(listener.run_until(endpoint, tls, links, stopped));
        if let Some(takeover) = takeover.take() {
            takeover.finish().await;
        }
        // Clients are served meanwhile.
        runtime.machine.warm_up().await;
        service_manager::notify("READY=1");
        let successor = tokio::select! {
            () = stop.recv() => None,
            // New clients find no listener, and start another server.
            () = runtime.idle() => {
                listening.abort();
                None
            }
            successor = ready.recv() => successor,
        };
        let Some(successor) = successor else {
            service_manager::notify("STOPPING=1");
            runtime.shut_down(&mut stop).await;
            return Ok(());
        };
        let _is_running = stop_accepting.send(());
        let listener = listening.stopped().await?;
        let [handover, own] = runtime.hand_over(&listener).await?;
        match successor.take_over(handover).await {
            Ok(pid) => {
                tracing::info!(pid, "another server has taken over");
                service_manager::notify(&format!("MAINPID={pid}"));
                listener.leave();
                runtime.shut_down(&mut stop).await;
                return Ok(());
            }
            Err(error) => {
                tracing::error!(
                    error = format!("{error:#}"),
                    "upgrade failed; this server goes on"
                );
                let mut last = upgrade_error.lock().unwrap_or_else(PoisonError::into_inner);
                *last = Some(format!("{error:#}"));
                drop(last);
                listener.leave();
                (inherited, goes_on) = (Some(own), true);
            }
        }
    }
}

/// Checks what would prevent this server from serving, while the old one still does.
fn check_takeover(config: &ServerConfig) -> anyhow::Result<()> {
    let durable = config
        .durable
        .as_ref()
        .context("--takeover needs a state directory")?;
    StateDir::open_read_only(&durable.directory).context("cannot take over the state directory")?;
    if let Some(paths) = &config.tls {
        tls::acceptor(&paths.cert, &paths.key)?;
    }
    Ok(())
}

/// The task that accepts connections. Dropping it closes the listener.
struct ListenerTask(JoinHandle<Listener>);

impl ListenerTask {
    fn spawn(running: impl Future<Output = Listener> + Send + 'static) -> Self {
        Self(tokio::spawn(running))
    }

    fn abort(&self) {
        self.0.abort();
    }

    /// Waits until the listener has stopped, and returns it.
    async fn stopped(&mut self) -> anyhow::Result<Listener> {
        (&mut self.0).await.context("the listener failed")
    }
}

impl Drop for ListenerTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn http_endpoint(config: &ServerConfig, runtime: &ServerRuntime) -> anyhow::Result<HttpEndpoint> {
    let hosts = AllowedHosts::new(config.allowed_hosts.iter());
    let hosts = match &config.tls {
        Some(paths) => hosts.with_certificate(&paths.cert)?,
        None => hosts,
    };
    Ok(HttpEndpoint {
        hosts,
        pending: PendingLimits::default(),
        auth: Arc::new(config.auth.clone()),
        draining: Arc::clone(&runtime.draining),
        metrics: Some(runtime.metrics()),
    })
}

/// Returns why no other server can take over, if so.
fn upgrade_obstacle(config: &ServerConfig, runtime: &ServerRuntime) -> Option<&'static str> {
    if runtime.machine.durable_store().is_none() {
        return Some(
            "this server has no state directory, so its processes would end: start it with --state-dir",
        );
    }
    if std::process::id() == 1 {
        return Some(
            "this server is the first process of its container, which ends with it: replace the container",
        );
    }
    (config.stdin_close == StdinClose::Ends)
        .then_some("this server stops at the end of its stdin, which another one cannot take over")
}

async fn bind(listen: &ListenUrl) -> anyhow::Result<Listener> {
    let bound = match listen {
        ListenUrl::Ws(address) => Listener::bind_tcp(*address, false).await,
        ListenUrl::Wss(address) => Listener::bind_tcp(*address, true).await,
        ListenUrl::Unix(path) => Listener::bind_unix(path),
        ListenUrl::Stdio | ListenUrl::Off => anyhow::bail!("`{listen}` has no socket"),
    };
    bound.with_context(|| format!("cannot listen on {listen}"))
}

/// Prints the URL for launchers: one line, and nothing after it.
fn announce(address: &ListenUrl) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{address}")
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")
}

/// Explains the server to a user at a terminal: its clients and the next step. Launchers, which
/// read stdout or a log, see nothing more.
fn explain(address: &ListenUrl, config: &ServerConfig) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        // A closed terminal is ignored.
        drop(writeln!(stderr, "{}", explanation(address, config)));
    }
}

fn explanation(address: &ListenUrl, config: &ServerConfig) -> String {
    let clients = match (config.auth.is_required(), config.insecure_no_auth) {
        (true, _) => "clients that present its token",
        (false, true) if address.is_network() => "everyone who can reach that address",
        (false, _) => "programs of your account",
    };
    let token = match config.auth.is_required() {
        true => " --token-file FILE",
        false => "",
    };
    let run = match cfg!(feature = "cli") {
        true => format!("`exec-server run -E {address}{token} -- ls`, or "),
        false => String::new(),
    };
    format!(
        "exec-server runs commands and serves files of this machine for {clients}. Next, in \
         another terminal: {run}`CODEX_EXEC_SERVER_URL={address} codex`. Press Ctrl-C to stop."
    )
}

/// Maximum links waiting to be served; beyond it, listeners wait (backpressure).
const MAX_QUEUED_LINKS: usize = 64;

/// Default of concurrent requests per connection.
const CONCURRENT_REQUESTS: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// Busy-poll time after a message. A harness sends its next request within this time, and waking a
/// core takes as long (`docs/benchmarks.md`).
const BUSY_POLL: Duration = Duration::from_micros(200);

/// This machine and its service. Dropping it terminates everything.
#[derive(Debug)]
pub(crate) struct ServerRuntime {
    pub(crate) machine: LocalMachine,
    pub(crate) service: Service,
    /// Aborted with this value, not with the runtime, which belongs to the embedder.
    pub(crate) tasks: JoinSet<()>,
    /// Set on shutdown: alive, but not ready.
    pub(crate) draining: Arc<AtomicBool>,
    metrics_renderer: MetricsRenderer,
    shutdown_grace: Duration,
    idle_exit: Option<Duration>,
    idle: Arc<Notify>,
    /// Serves incoming links, if a listener or a relay yields any.
    links: Option<LinksTask>,
}

/// The task that serves incoming links.
#[derive(Debug)]
struct LinksTask {
    /// Dropping it stops the task, once the links that have come are served.
    stop: oneshot::Sender<()>,
    /// Closed when the task has ended.
    ended: oneshot::Receiver<()>,
}

impl ServerRuntime {
    /// Inspects this machine. Starts nothing yet.
    pub(crate) fn new(
        config: &ServerConfig,
        paths: &ExecServerRuntimePaths,
        state: Option<StateDir>,
    ) -> anyhow::Result<Self> {
        // A helper that gets here would start helpers endlessly.
        run_if_helper();
        for warning in &config.warnings {
            tracing::error!("{warning}");
        }
        let settings = LocalMachineSettings {
            retained_output_bytes: config.retained_output_bytes,
            sandbox: config.sandbox,
            protected: protected_paths(config),
            state,
            socket_directory: match config.ephemeral {
                true => SocketDirectory::IfPresent,
                false => SocketDirectory::Created,
            },
        };
        let machine = LocalMachine::for_a_server(settings, paths)?;
        let open = {
            let machine = machine.clone();
            move || machine.environment()
        };
        #[cfg(feature = "otel")]
        let service = {
            let config = service_config(config, &machine);
            Service::with_tracing(config, open, continue_trace)
        };
        #[cfg(not(feature = "otel"))]
        let service = Service::new(service_config(config, &machine), open);
        Ok(Self {
            machine,
            metrics_renderer: MetricsRenderer::new(service.clone()),
            service,
            tasks: JoinSet::new(),
            draining: Arc::default(),
            shutdown_grace: config.shutdown_grace,
            idle_exit: config.idle_exit,
            idle: Arc::default(),
            links: None,
        })
    }

    /// Ends all connections and leaves the durable processes to the next server. Returns two
    /// copies of the handover: one is for this server, in case the next one fails.
    async fn hand_over(&mut self, listener: &Listener) -> anyhow::Result<[Handover; 2]> {
        let links = self.links.take();
        let served = async {
            if let Some(LinksTask { stop, ended }) = links {
                drop(stop);
                // The task ends without a message.
                drop::<Result<(), _>>(ended.await);
            }
        };
        self.service.hand_over(served).await;
        // The metrics listener must be free for the next server.
        self.tasks.shutdown().await;
        let store = self.machine.durable_store().context("no state directory")?;
        let handover = || -> anyhow::Result<Handover> {
            Ok(Handover {
                address: listener.address().clone(),
                state_lock: store.state().lock_file().try_clone_to_owned()?,
                listener: listener.duplicates()?,
            })
        };
        Ok([handover()?, handover()?])
    }

    /// Continues what an earlier server with the same state directory has left.
    pub(crate) async fn restore(&mut self) -> anyhow::Result<()> {
        if self.machine.durable_store().is_some() {
            let machine = self.machine.clone();
            self.tasks.spawn(async move { machine.clean_state().await });
        }
        let restored = self.service.restore().await;
        let counts = restored.context("cannot restore the processes of an earlier server")?;
        if counts != RestoredCounts::default() {
            tracing::info!(
                sessions = counts.sessions,
                running = counts.running,
                ended = counts.ended,
                "restored the state of an earlier server"
            );
        }
        Ok(())
    }

    /// Refuses to be replaced by another program, for a reason that clients learn.
    pub(crate) fn refuse_upgrades(&self, reason: &'static str) {
        let (successors, _refused) = mpsc::channel(1);
        let control = UpgradeControl::new(successors, Some(reason), Arc::default());
        self.service.set_control(Arc::new(control));
    }

    /// Serves incoming links until this value is dropped.
    pub(crate) fn serve_links(&mut self) -> mpsc::Sender<Link> {
        let (links, incoming) = mpsc::channel(MAX_QUEUED_LINKS);
        let (service, idle) = (self.service.clone(), Arc::clone(&self.idle));
        let ((stop, stopped), (running, ended)) = (oneshot::channel(), oneshot::channel());
        let idle_exit = self.idle_exit;
        self.tasks.spawn(async move {
            serve_all(service, incoming, idle_exit, idle, stopped).await;
            drop::<oneshot::Sender<()>>(running);
        });
        self.links = Some(LinksTask { stop, ended });
        links
    }

    /// Waits until the idle time has passed without connections and running processes. Never
    /// returns if none is configured, or no links are served.
    pub(crate) async fn idle(&self) {
        self.idle.notified().await;
    }

    /// Returns the metrics handler for a listener.
    pub(crate) fn metrics(&self) -> MetricsEndpoint {
        self.metrics_renderer.endpoint()
    }

    /// Starts the metrics listener, if configured.
    pub(crate) async fn serve_metrics(&mut self, config: &ServerConfig) -> anyhow::Result<()> {
        if let Some(address) = config.metrics_listen {
            let draining = Arc::clone(&self.draining);
            let names = &config.allowed_hosts;
            let watched = serve_metrics(address, self.metrics(), draining, names).await?;
            self.tasks.spawn(watched);
        }
        Ok(())
    }

    /// Shuts down: lets processes finish within the grace period, or until a second request.
    pub(crate) async fn shut_down(self, stop: &mut ShutdownSignal) {
        self.draining.store(true, Ordering::Relaxed);
        let levels = self.service.gauges();
        tracing::info!(
            sessions = levels.sessions_attached + levels.sessions_detached,
            processes = levels.processes_running,
            "stopping"
        );
        tokio::select! {
            () = self.service.shut_down(self.shutdown_grace) => {}
            // A second request stops at once. Running processes die with their supervisors'
            // sockets.
            () = stop.recv() => {}
        }
    }
}

impl Drop for ServerRuntime {
    /// Kills running processes. Detached sessions would otherwise live as long as the runtime.
    fn drop(&mut self) {
        self.service.kill_all();
    }
}

async fn serve_all(
    service: Service,
    mut incoming: mpsc::Receiver<Link>,
    idle_exit: Option<Duration>,
    idle: Arc<Notify>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            link = incoming.recv() => {
                let Some(link) = link else { break };
                let service = service.clone();
                connections.spawn(async move { service.serve(link).await });
            }
            // The next receives return the queued links, and then `None`.
            _ = &mut stopped, if !incoming.is_closed() => incoming.close(),
            // Reap finished tasks, so that the set does not grow.
            Some(_ended) = connections.join_next() => {}
            () = wait_unused(&service, idle_exit), if connections.is_empty() => {
                idle.notify_one();
                break;
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

/// Waits until the service is idle and no retained output is left. Without a connection, nothing
/// new is started meanwhile.
async fn wait_unused(service: &Service, idle_exit: Option<Duration>) {
    match idle_exit {
        Some(idle_exit) => {
            service.wait_idle().await;
            sleep(idle_exit).await;
            while service.has_detached_processes() {
                sleep(idle_exit).await;
            }
        }
        None => pending().await,
    }
}

/// Returns the files that no sandbox may write or replace.
fn protected_paths(config: &ServerConfig) -> Vec<PathBuf> {
    let mut paths = match &config.listen {
        ListenUrl::Unix(path) => vec![path.clone(), lock_path(path)],
        ListenUrl::Ws(_) | ListenUrl::Wss(_) | ListenUrl::Stdio | ListenUrl::Off => Vec::new(),
    };
    paths.extend(
        config
            .durable
            .as_ref()
            .map(|durable| durable.directory.clone()),
    );
    paths
}

/// Opens the state directory, if one is configured.
pub(crate) fn open_state(config: &ServerConfig) -> anyhow::Result<Option<StateDir>> {
    let Some(durable) = &config.durable else {
        return Ok(None);
    };
    match lock_state(durable) {
        Ok(state) => Ok(Some(state)),
        Err(error) if durable.optional => {
            let directory = durable.directory.display();
            tracing::error!(%directory, %error, "processes will not outlive this server");
            Ok(None)
        }
        Err(error) => {
            let directory = durable.directory.display();
            Err(error).with_context(|| format!("cannot use the state directory `{directory}`"))
        }
    }
}

/// How long another server may hold the lock of the state directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// How often to try to lock it meanwhile.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// Opens and locks the state directory. A server that was killed while it started a program has
/// left a child that holds the lock until it executes that program.
fn lock_state(durable: &DurableConfig) -> Result<StateDir, StateDirError> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match StateDir::open(&durable.directory, durable.limits) {
            Err(StateDirError::Locked(_)) if Instant::now() < deadline => {
                thread::sleep(LOCK_INTERVAL);
            }
            opened => return opened,
        }
    }
}

/// Opens the state directory of a server that hands it over.
fn inherit_state(config: &ServerConfig, lock: OwnedFd) -> anyhow::Result<Option<StateDir>> {
    let durable = config
        .durable
        .as_ref()
        .context("--takeover needs a state directory")?;
    let state = StateDir::from_parts(&durable.directory, lock, durable.limits);
    Ok(Some(state.context("cannot take over the state directory")?))
}

fn service_config(config: &ServerConfig, machine: &LocalMachine) -> ServiceConfig {
    let durability = machine.durable_state().map(|state| Durability {
        state,
        default: config
            .durable
            .as_ref()
            .map_or(DurabilityDefault::Off, |durable| durable.default),
    });
    ServiceConfig {
        durability,
        session_ttl: config.session_ttl,
        process_retention: config.process_retention,
        max_processes: config.max_processes,
        allow_direct_exec: config.allow_direct_exec,
        allow_prepared_exec: config.allow_prepared_exec,
        concurrency: match config.concurrent_requests {
            ConcurrentRequests::Serial => Concurrency::Serial,
            ConcurrentRequests::AtMost(most) => Concurrency::AtMost(most),
            ConcurrentRequests::Unlimited => Concurrency::AtMost(CONCURRENT_REQUESTS),
        },
        busy_poll: busy_poll_time(),
        server_name: ServerInfo {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
    }
}

fn busy_poll_time() -> Duration {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    if cores > 1 { BUSY_POLL } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn listeners_that_would_be_open_or_unencrypted_are_refused() {
        for (listen, expected) in [
            ("ws://0.0.0.0:0", "without authentication"),
            ("wss://127.0.0.1:0", "needs a certificate"),
        ] {
            let refused = run_main_with_listen_url(listen, ExecServerRuntimePaths::default()).await;
            let text = refused.unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }

    #[cfg(feature = "cli")]
    #[test]
    fn explanation_names_allowed_clients_and_next_command() {
        let explained = |flags: &[&str]| {
            let config = ServerConfig::from_flags(flags).unwrap();
            explanation(&"ws://127.0.0.1:1".parse().unwrap(), &config)
        };
        let open = explained(&[]);
        assert!(open.contains("for programs of your account"), "{open}");
        assert!(open.contains("run -E ws://127.0.0.1:1 --"), "{open}");
        assert!(
            open.contains("CODEX_EXEC_SERVER_URL=ws://127.0.0.1:1"),
            "{open}"
        );
        assert_eq!(open.lines().count(), 1);
        let digest = "0".repeat(64);
        let closed = explained(&[
            "--ws-auth",
            "capability-token",
            "--ws-token-sha256",
            &digest,
        ]);
        assert!(closed.contains("present its token"), "{closed}");
        assert!(closed.contains("--token-file FILE"), "{closed}");
        let everyone = explained(&["--insecure-no-auth"]);
        assert!(everyone.contains("everyone who can reach"), "{everyone}");
    }
}
