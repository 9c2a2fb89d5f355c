//! Runs a server: builds the environment of this machine and its service, listens, accepts links,
//! and drains and shuts down on request.

use std::{
    future::pending,
    io::{IsTerminal, Write},
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use exec_service::{Concurrency, Service, ServiceConfig};
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
    sync::{Notify, mpsc},
    task::JoinSet,
    time::sleep,
};

#[cfg(feature = "otel")]
use crate::telemetry::continue_trace;
use crate::{
    config::{ConcurrentRequests, ServerConfig},
    local_machine::{ExecServerRuntimePaths, LocalMachine, LocalMachineSettings, run_if_helper},
    shutdown_signal::{ShutdownSignal, StdinClose},
    telemetry::{MetricsRenderer, serve_metrics},
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
    let mut runtime = ServerRuntime::new(&config, &paths)?;
    // With stdio, the client speaks on stdin.
    let stdin = match config.listen == ListenUrl::Stdio {
        true => StdinClose::Ignored,
        false => config.stdin_close,
    };
    let mut stop = ShutdownSignal::new(stdin)?;
    runtime.serve_metrics(&config).await?;
    match config.listen.clone() {
        ListenUrl::Stdio => {
            runtime.machine.warm_up().await;
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
        }
        ListenUrl::Off => {
            runtime.machine.warm_up().await;
            stop.recv().await;
        }
        listen @ (ListenUrl::Ws(_) | ListenUrl::Wss(_) | ListenUrl::Unix(_)) => {
            let tls = match &config.tls {
                Some(paths) => Some(tls::acceptor(&paths.cert, &paths.key)?),
                None => None,
            };
            let hosts = AllowedHosts::new(config.allowed_hosts.iter());
            let hosts = match &config.tls {
                Some(paths) => hosts.with_certificate(&paths.cert)?,
                None => hosts,
            };
            let endpoint = HttpEndpoint {
                hosts,
                pending: PendingLimits::default(),
                auth: Arc::new(config.auth.clone()),
                draining: Arc::clone(&runtime.draining),
                metrics: Some(runtime.metrics()),
            };
            let mut listener = bind(&listen).await?;
            if !config.auth.is_required() && !config.insecure_no_auth {
                listener = listener.for_own_account();
            }
            announce(listener.address())?;
            explain(listener.address(), &config);
            tracing::info!(address = %listener.address(), "listening");
            runtime.machine.warm_up().await;
            let links = runtime.serve_links();
            // Keeps running while the server drains: alive, but not ready.
            let listening = runtime.tasks.spawn(listener.run(endpoint, tls, links));
            tokio::select! {
                () = stop.recv() => {}
                // New clients find no listener, and start another server.
                () = runtime.idle() => listening.abort(),
            }
        }
    }
    runtime.shut_down(&mut stop).await;
    Ok(())
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
}

impl ServerRuntime {
    /// Inspects this machine. Starts nothing yet.
    pub(crate) fn new(
        config: &ServerConfig,
        paths: &ExecServerRuntimePaths,
    ) -> anyhow::Result<Self> {
        // A helper that gets here would start helpers endlessly.
        run_if_helper();
        for warning in &config.warnings {
            tracing::error!("{warning}");
        }
        let settings = LocalMachineSettings {
            retained_output_bytes: config.retained_output_bytes,
            sandbox: config.sandbox,
            protected: match &config.listen {
                ListenUrl::Unix(path) => vec![path.clone(), lock_path(path)],
                ListenUrl::Ws(_) | ListenUrl::Wss(_) | ListenUrl::Stdio | ListenUrl::Off => {
                    Vec::new()
                }
            },
        };
        let machine = LocalMachine::for_a_server(settings, paths)?;
        let open = {
            let machine = machine.clone();
            move || machine.environment()
        };
        #[cfg(feature = "otel")]
        let service = Service::with_tracing(service_config(config), open, continue_trace);
        #[cfg(not(feature = "otel"))]
        let service = Service::new(service_config(config), open);
        Ok(Self {
            machine,
            metrics_renderer: MetricsRenderer::new(service.clone()),
            service,
            tasks: JoinSet::new(),
            draining: Arc::default(),
            shutdown_grace: config.shutdown_grace,
            idle_exit: config.idle_exit,
            idle: Arc::default(),
        })
    }

    /// Serves incoming links until this value is dropped.
    pub(crate) fn serve_links(&mut self) -> mpsc::Sender<Link> {
        let (links, incoming) = mpsc::channel(MAX_QUEUED_LINKS);
        let (service, idle) = (self.service.clone(), Arc::clone(&self.idle));
        self.tasks
            .spawn(serve_all(service, incoming, self.idle_exit, idle));
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
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            link = incoming.recv() => {
                let Some(link) = link else { break };
                let service = service.clone();
                connections.spawn(async move { service.serve(link).await });
            }
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

fn service_config(config: &ServerConfig) -> ServiceConfig {
    ServiceConfig {
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

    #[cfg(feature = "executor")]
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
