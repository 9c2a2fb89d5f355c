//! Running a server: builds the environment, listens, and stops when it is told to.

use std::{
    collections::BTreeMap,
    io::Write,
    num::NonZeroUsize,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use clap::Parser;
use exec_core::log::Retention;
use exec_env::environment::Environment;
use exec_local::{
    backend::{LocalBackend, LocalConfig},
    filesystem::LocalFileSystem,
    host::{Host, HostFacts},
};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_transport::{
    http::Door,
    lines,
    link::{Link, Role},
    listen::ListenUrl,
    listener::Listener,
    tls,
};
use exec_wire::{initialize::ServerName, limits};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use crate::{
    cli::Cli,
    config::{self, ConcurrentRequests, ServerConfig},
};

/// Requests of one connection that run at once, unless configured otherwise.
const CONCURRENT_REQUESTS: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// How long a connection keeps the thread awake after a message. A harness that waits for an answer
/// asks again within this time, and waking up a core takes as long (`docs/benchmarks.md`).
const ATTENTION: Duration = Duration::from_micros(200);

/// Runs a server on `listen_url` with every other setting at its default.
pub async fn run_main_with_listen_url(listen_url: &str) -> anyhow::Result<()> {
    let cli = Cli::try_parse_from(["exec-server", "--listen", listen_url])?;
    run_main(config::load(cli, &|_| None)?).await
}

/// Runs a server until SIGTERM or SIGINT, or, on stdio, until its client is done.
pub async fn run_main(config: ServerConfig) -> anyhow::Result<()> {
    for warning in &config.warnings {
        tracing::error!("{warning}");
    }
    let backend = LocalBackend::new(local_config(&config)?);
    let service = Service::new(service_config(&config), {
        let files = LocalFileSystem::for_a_server().with_policies_of(&backend);
        let backend = backend.clone();
        move || Environment {
            backend: Arc::new(backend.clone()),
            files: Arc::new(files.clone()),
        }
    });
    let mut stop = Stop::new()?;
    let draining = Arc::new(AtomicBool::new(false));
    match config.listen.clone() {
        ListenUrl::Stdio => {
            backend.warm_up().await;
            let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
            let link = lines::link(stdin, stdout, Role::Server, "exec-server stdio");
            tokio::select! {
                () = service.serve(link) => {}
                () = stop.asked() => {}
            }
        }
        ListenUrl::Off => {
            backend.warm_up().await;
            stop.asked().await;
        }
        listen @ (ListenUrl::Ws(_) | ListenUrl::Wss(_) | ListenUrl::Unix(_)) => {
            let tls = match &config.tls {
                Some(paths) => Some(tls::acceptor(&paths.cert, &paths.key)?),
                None => None,
            };
            let door = Door {
                auth: Arc::new(config.auth.clone()),
                draining: Arc::clone(&draining),
            };
            let listener = bind(&listen).await?;
            announce(listener.address())?;
            backend.warm_up().await;
            let (links, incoming) = mpsc::channel(64);
            tokio::spawn(listener.run(door, tls, links));
            // Both go on while the server drains: it is alive, and says that it is not ready.
            tokio::spawn(serve_all(service.clone(), incoming));
            stop.asked().await;
        }
    }
    draining.store(true, Ordering::Relaxed);
    tokio::select! {
        () = service.shut_down(config.shutdown_grace) => {}
        // Asked twice: at once. What runs dies with its supervisors' sockets.
        () = stop.asked() => {}
    }
    Ok(())
}

async fn serve_all(service: Service, mut incoming: mpsc::Receiver<Link>) {
    while let Some(link) = incoming.recv().await {
        let service = service.clone();
        tokio::spawn(async move { service.serve(link).await });
    }
}

async fn bind(listen: &ListenUrl) -> anyhow::Result<Listener> {
    let bound = match listen {
        ListenUrl::Ws(address) => Listener::bind_tcp(*address, false).await,
        ListenUrl::Wss(address) => Listener::bind_tcp(*address, true).await,
        ListenUrl::Unix(path) => Listener::bind_unix(path).await,
        ListenUrl::Stdio | ListenUrl::Off => anyhow::bail!("`{listen}` has no socket"),
    };
    bound.with_context(|| format!("cannot listen on {listen}"))
}

/// Tells launchers where the server listens: one line, and nothing after it.
fn announce(address: &ListenUrl) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{address}")
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")
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

fn local_config(config: &ServerConfig) -> anyhow::Result<LocalConfig> {
    let env: BTreeMap<_, _> = std::env::vars_os().collect();
    let cwd = std::env::current_dir().context("cannot find the working directory")?;
    // Without the file, the shell and the home come from the environment.
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let host = Host::new(&HostFacts {
        env: &env,
        passwd: &passwd,
        uid: rustix::process::getuid().as_raw(),
        cwd: &cwd,
        exists: &|path: &Path| path.exists(),
    });
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let retention = Retention {
        bytes: config.retained_output_bytes,
        chunks: limits::RETAINED_OUTPUT_CHUNKS,
    };
    Ok(LocalConfig {
        env,
        host,
        version,
        retention,
        sandbox: config.sandbox,
    })
}

/// The two signals that stop a server.
struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
