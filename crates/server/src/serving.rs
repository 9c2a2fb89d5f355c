//! This machine at the service of clients, wherever their links come from.

use std::{num::NonZeroUsize, time::Duration};

use exec_service::{Concurrency, Service, ServiceConfig};
use exec_transport::link::Link;
use exec_wire::initialize::ServerName;
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    config::{ConcurrentRequests, ServerConfig},
    local::{LocalMachine, LocalSettings},
    paths::{ExecServerRuntimePaths, run_if_helper},
    stop::Stop,
};

/// Links that wait to be served. Whoever brings them waits beyond.
const LINKS: usize = 64;

/// Requests of one connection that run at once, unless configured otherwise.
const CONCURRENT_REQUESTS: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// How long a connection keeps the thread awake after a message. A harness that waits for an answer
/// asks again within this time, and waking up a core takes as long (`docs/benchmarks.md`).
const ATTENTION: Duration = Duration::from_micros(200);

/// This machine and the service that presents it. Dropping it ends everything.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) machine: LocalMachine,
    pub(crate) service: Service,
    /// Ended with this value, not with the runtime, which belongs to the embedder.
    pub(crate) tasks: JoinSet<()>,
    shutdown_grace: Duration,
}

impl Serving {
    /// Looks at this machine. Nothing is started yet.
    pub(crate) fn new(
        config: &ServerConfig,
        paths: &ExecServerRuntimePaths,
    ) -> anyhow::Result<Self> {
        // A helper that got this far would start helpers without end.
        run_if_helper();
        for warning in &config.warnings {
            tracing::error!("{warning}");
        }
        let settings = LocalSettings {
            retained_output_bytes: config.retained_output_bytes,
            sandbox: config.sandbox,
        };
        let machine = LocalMachine::for_a_server(settings, paths)?;
        let service = Service::new(service_config(config), {
            let machine = machine.clone();
            move || machine.environment()
        });
        Ok(Self {
            machine,
            service,
            tasks: JoinSet::new(),
            shutdown_grace: config.shutdown_grace,
        })
    }

    /// Serves whatever links come, until this value is dropped.
    pub(crate) fn serve_links(&mut self) -> mpsc::Sender<Link> {
        let (links, incoming) = mpsc::channel(LINKS);
        self.tasks.spawn(serve_all(self.service.clone(), incoming));
        links
    }

    /// Lets processes finish, as long as they may, or until it is asked a second time.
    pub(crate) async fn shut_down(self, stop: &mut Stop) {
        tokio::select! {
            () = self.service.shut_down(self.shutdown_grace) => {}
            // Asked twice: at once. What runs dies with its supervisors' sockets.
            () = stop.asked() => {}
        }
    }
}

impl Drop for Serving {
    /// Kills what runs. Sessions without a connection would outlive the server otherwise, if the
    /// runtime does.
    fn drop(&mut self) {
        self.service.end();
    }
}

async fn serve_all(service: Service, mut incoming: mpsc::Receiver<Link>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            link = incoming.recv() => {
                let Some(link) = link else { break };
                let service = service.clone();
                connections.spawn(async move { service.serve(link).await });
            }
            // What has ended is taken out, or the set would grow for ever.
            Some(_ended) = connections.join_next() => {}
        }
    }
    while connections.join_next().await.is_some() {}
}

fn service_config(config: &ServerConfig) -> ServiceConfig {
    ServiceConfig {
        session_ttl: config.session_ttl,
        max_processes: config.max_processes,
        allow_direct_exec: config.allow_direct_exec,
        allow_prepared_exec: config.allow_prepared_exec,
        concurrency: match config.concurrent_requests {
            ConcurrentRequests::Serial => Concurrency::Serial,
            ConcurrentRequests::AtMost(most) => Concurrency::AtMost(most),
            ConcurrentRequests::Unlimited => Concurrency::AtMost(CONCURRENT_REQUESTS),
        },
        attention: attention(),
        server: ServerName {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
    }
}

fn attention() -> Duration {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    if cores > 1 { ATTENTION } else { Duration::ZERO }
}
