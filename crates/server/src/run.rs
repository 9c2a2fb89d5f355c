//! Running a server: builds the environment, listens, and stops when it is told to.

use std::{io::Write, sync::Arc};

use anyhow::Context;
use exec_transport::{http::Door, lines, link::Role, listen::ListenUrl, listener::Listener, tls};

use crate::{
    config::ServerConfig,
    paths::ExecServerRuntimePaths,
    serving::Serving,
    stop::{StdinClose, Stop},
};

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

/// Runs a server until SIGTERM or SIGINT, or, on stdio, until its client is done; until the end of
/// standard input, if the configuration says so.
///
/// A websocket listener prints its URL to stdout once it is bound. Commands inherit the environment
/// of this process as their policies say. Dropping the future closes the listener and every connection,
/// and kills what runs.
///
/// # Errors
/// When it cannot listen, or this machine cannot be looked at.
pub async fn run_main(config: ServerConfig, paths: ExecServerRuntimePaths) -> anyhow::Result<()> {
    let mut serving = Serving::new(&config, &paths)?;
    // On stdio it is the client that speaks on it.
    let stdin = match config.listen == ListenUrl::Stdio {
        true => StdinClose::Ignored,
        false => config.stdin_close,
    };
    let mut stop = Stop::new(stdin)?;
    serving.look_out(&config).await?;
    match config.listen.clone() {
        ListenUrl::Stdio => {
            serving.machine.warm_up().await;
            let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
            let link = lines::link(stdin, stdout, Role::Server, "exec-server stdio");
            let service = serving.service.clone();
            // It goes on while the server drains: the client hears of the end of its processes.
            serving
                .tasks
                .spawn(async move { service.serve(link).await });
            tokio::select! {
                _ended = serving.tasks.join_next() => {}
                () = stop.asked() => {}
            }
        }
        ListenUrl::Off => {
            serving.machine.warm_up().await;
            stop.asked().await;
        }
        listen @ (ListenUrl::Ws(_) | ListenUrl::Wss(_) | ListenUrl::Unix(_)) => {
            let tls = match &config.tls {
                Some(paths) => Some(tls::acceptor(&paths.cert, &paths.key)?),
                None => None,
            };
            let door = Door {
                auth: Arc::new(config.auth.clone()),
                draining: Arc::clone(&serving.draining),
                metrics: Some(serving.metrics()),
            };
            let listener = bind(&listen).await?;
            announce(listener.address())?;
            tracing::info!(address = %listener.address(), "listening");
            serving.machine.warm_up().await;
            let links = serving.serve_links();
            // It goes on while the server drains: it is alive, and says that it is not ready.
            let listening = serving.tasks.spawn(listener.run(door, tls, links));
            tokio::select! {
                () = stop.asked() => {}
                // Whoever comes now finds nobody, and starts another.
                () = serving.idle() => listening.abort(),
            }
        }
    }
    serving.shut_down(&mut stop).await;
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

/// Tells launchers where the server listens: one line, and nothing after it.
fn announce(address: &ListenUrl) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{address}")
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")
}
