//! Running a server: builds the environment, listens, and stops when it is told to.

use std::{
    io::Write,
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
    http::Door,
    lines,
    link::{Link, Role},
    listen::ListenUrl,
    listener::Listener,
    tls,
};
use exec_wire::initialize::ServerName;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinSet,
};

use crate::{
    config::{ConcurrentRequests, ServerConfig},
    local::{LocalMachine, LocalSettings},
    paths::{ExecServerRuntimePaths, run_if_helper},
};

/// Requests of one connection that run at once, unless configured otherwise.
const CONCURRENT_REQUESTS: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// How long a connection keeps the thread awake after a message. A harness that waits for an answer
/// asks again within this time, and waking up a core takes as long (`docs/benchmarks.md`).
const ATTENTION: Duration = Duration::from_micros(200);

/// Runs a server on `listen_url` with every other setting at its default.
///
/// # Errors
/// When the URL is none to listen on, other machines could reach it without authentication, or as
/// [`run_main`].
pub async fn run_main_with_listen_url(
    listen_url: &str,
    paths: ExecServerRuntimePaths,
) -> anyhow::Result<()> {
    run_main(ServerConfig::from_flags(["--listen", listen_url])?, paths).await
}

/// Runs a server until SIGTERM or SIGINT, or, on stdio, until its client is done.
///
/// A websocket listener prints its URL to stdout once it is bound. Commands inherit the environment
/// of this process as their policies say. Dropping the future closes the listener and every connection,
/// and kills what runs.
///
/// # Errors
/// When it cannot listen, or this machine cannot be looked at.
pub async fn run_main(config: ServerConfig, paths: ExecServerRuntimePaths) -> anyhow::Result<()> {
    // A helper that got this far would start helpers without end.
    run_if_helper();
    for warning in &config.warnings {
        tracing::error!("{warning}");
    }
    let settings = LocalSettings {
        retained_output_bytes: config.retained_output_bytes,
        sandbox: config.sandbox,
    };
    let machine = LocalMachine::for_a_server(settings, &paths)?;
    let service = Service::new(service_config(&config), {
        let machine = machine.clone();
        move || machine.environment()
    });
    let _ending = Ending(service.clone());
    let mut stop = Stop::new()?;
    let draining = Arc::new(AtomicBool::new(false));
    // Ended with this function, not with the runtime, which belongs to the embedder.
    let mut tasks = JoinSet::new();
    match config.listen.clone() {
        ListenUrl::Stdio => {
            machine.warm_up().await;
            let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
            let link = lines::link(stdin, stdout, Role::Server, "exec-server stdio");
            let serving = service.clone();
            // It goes on while the server drains: the client hears of the end of its processes.
            tasks.spawn(async move { serving.serve(link).await });
            tokio::select! {
                _ended = tasks.join_next() => {}
                () = stop.asked() => {}
            }
        }
        ListenUrl::Off => {
            machine.warm_up().await;
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
            machine.warm_up().await;
            let (links, incoming) = mpsc::channel(64);
            tasks.spawn(listener.run(door, tls, links));
            // Both go on while the server drains: it is alive, and says that it is not ready.
            tasks.spawn(serve_all(service.clone(), incoming));
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

/// Kills what runs when it is dropped. Sessions without a connection would outlive the server
/// otherwise, if the runtime does.
struct Ending(Service);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
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
