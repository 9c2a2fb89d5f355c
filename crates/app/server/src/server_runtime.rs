//! This machine and its service: accepts links, drains and shuts down.

use std::{
    future::pending,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use exec_service::{Concurrency, Service, ServiceConfig};
use exec_transport::{
    http::MetricsEndpoint,
    link::Link,
    listen_url::{ListenUrl, lock_path},
};
use exec_wire::initialize::ServerInfo;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
    time::sleep,
};

use crate::{
    config::{ConcurrentRequests, ServerConfig},
    local_machine::{ExecServerRuntimePaths, LocalMachine, LocalMachineSettings, run_if_helper},
    shutdown_signal::ShutdownSignal,
    telemetry::{MetricsRenderer, continue_trace, serve_metrics},
};

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
        let service = Service::with_tracing(service_config(config), open, continue_trace);
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
        self.metrics_renderer.exposition()
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
            () = unused(&service, idle_exit), if connections.is_empty() => {
                idle.notify_one();
                break;
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

/// Waits until the service is idle and no retained output is left. Without a connection, nothing
/// new is started meanwhile.
async fn unused(service: &Service, idle_exit: Option<Duration>) {
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
        busy_poll: attention(),
        server_name: ServerInfo {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
    }
}

fn attention() -> Duration {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    if cores > 1 { BUSY_POLL } else { Duration::ZERO }
}
