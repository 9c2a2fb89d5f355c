//! Runs a server: builds the environment, listens, and shuts down on request.

use std::{
    io::{IsTerminal, Write},
    sync::Arc,
};

use anyhow::Context;
use exec_transport::{
    http::{AllowedHosts, HttpEndpoint, PendingLimits},
    lines,
    link::LinkRole,
    listen_url::ListenUrl,
    listener::Listener,
    tls,
};

use crate::{
    config::ServerConfig,
    local_machine::ExecServerRuntimePaths,
    server_runtime::ServerRuntime,
    shutdown_signal::{ShutdownSignal, StdinClose},
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
    run_main(ServerConfig::from_flags(["--listen", listen_url])?, paths).await
}

/// Runs a server until SIGTERM or SIGINT; on stdio, until its client disconnects; until the end of
/// stdin, if configured.
///
/// A websocket listener prints its URL to stdout once it is bound. Commands inherit the environment
/// of this process, as their policies say. Dropping the future closes the listener and every
/// connection, and kills running processes.
///
/// # Errors
/// When it cannot listen, or this machine cannot be inspected.
pub async fn run_main(config: ServerConfig, paths: ExecServerRuntimePaths) -> anyhow::Result<()> {
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
            let door = HttpEndpoint {
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
            let listening = runtime.tasks.spawn(listener.run(door, tls, links));
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
    format!(
        "exec-server runs commands and serves files of this machine for {clients}. Next, in \
         another terminal: `exec-server run -E {address}{token} -- ls`, or \
         `CODEX_EXEC_SERVER_URL={address} codex`. Press Ctrl-C to stop."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanation_names_allowed_clients_and_next_command() {
        let told = |flags: &[&str]| {
            let config = ServerConfig::from_flags(flags).unwrap();
            explanation(&"ws://127.0.0.1:1".parse().unwrap(), &config)
        };
        let open = told(&[]);
        assert!(open.contains("for programs of your account"), "{open}");
        assert!(open.contains("run -E ws://127.0.0.1:1 --"), "{open}");
        assert!(
            open.contains("CODEX_EXEC_SERVER_URL=ws://127.0.0.1:1"),
            "{open}"
        );
        assert_eq!(open.lines().count(), 1);
        let digest = "0".repeat(64);
        let closed = told(&[
            "--ws-auth",
            "capability-token",
            "--ws-token-sha256",
            &digest,
        ]);
        assert!(closed.contains("present its token"), "{closed}");
        assert!(closed.contains("--token-file FILE"), "{closed}");
        let everyone = told(&["--insecure-no-auth"]);
        assert!(everyone.contains("everyone who can reach"), "{everyone}");
    }
}
