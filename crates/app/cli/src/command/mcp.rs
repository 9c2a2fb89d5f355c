//! `exec-server mcp`: the tools for agents, over stdio or HTTP.

mod detached_commands;
mod mcp_environment;

use std::{
    convert::Infallible,
    io::Write,
    net::{SocketAddr, TcpListener as StdListener},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime},
};

use clap::{Args, ValueEnum};
use exec_settings::{
    settings_source::read_text,
    shutdown_signal::{ShutdownSignal, StdinClose},
};
use exec_tools::mcp::{
    GitAccess, McpHttpEndpoint, McpHttpOptions, McpTools, NetworkMode, WorkspaceAccess,
};
use exec_transport::{
    auth::{AuthPolicy, AuthRejection, TokenDigest, UnixSeconds},
    listener::accept_tcp,
};
use exec_wire::error::error_chain;
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

use self::mcp_environment::McpEnvironment;
use crate::command::{
    connect::EnvArgs,
    failure::{CommandFailure, FailureKind},
};

/// Serves the tools for agents as an MCP server.
///
/// Without --http it serves one client on stdin and stdout, and exits with it. Without --env it
/// works on this machine, through its background server, which is started if none is running.
///
/// With protocol revision 2026-07-28, commands run on when this process or its client exits: the
/// next one with the same workspace and flags finds them, and `exec-server ps` lists them. Clients
/// of earlier revisions have a session, and their commands end with it.
#[derive(Args, Clone, Debug)]
pub struct McpCommand {
    #[command(flatten)]
    env_args: EnvArgs,

    /// Works on this machine in this process, without a server: all commands end with it.
    #[arg(long)]
    in_process: bool,

    /// Directory to work in, repeatable: relative paths start in the first, all are writable
    /// [default: the working directory on this machine; elsewhere the server's].
    #[arg(short = 'w', long, value_name = "DIR")]
    workspace: Vec<PathBuf>,

    /// What commands and tools may write. Everything is readable.
    #[arg(long, value_name = "POLICY", default_value = "workspace-write")]
    sandbox: McpSandbox,

    /// Allows sandboxed commands network access: everything the host reaches (full, the default),
    /// or only servers on the host's loopback, through a proxy that their environment names
    /// (loopback).
    #[arg(
        long, value_name = "REACH", num_args = 0..=1, require_equals = true,
        default_missing_value = "full"
    )]
    network: Option<McpNetwork>,

    /// Additional directory that commands and tools may write to, repeatable.
    #[arg(long, value_name = "DIR")]
    writable: Vec<PathBuf>,

    /// Lets commands and tools write `.git` in the workspace.
    ///
    /// It is protected otherwise, because its hooks and settings run commands outside the sandbox.
    #[arg(long)]
    allow_git: bool,

    /// Address for streamable HTTP, such as 127.0.0.1:8931; port 0 picks a free one. The URL is
    /// printed.
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Option<SocketAddr>,

    /// File with the token that clients must send as `Authorization: Bearer`. Required for any
    /// address but loopback.
    #[arg(long, value_name = "FILE", requires = "http")]
    http_token_file: Option<PathBuf>,

    /// Host name that clients use for this machine, repeatable; loopback names and the address
    /// itself are always accepted. Requests for other hosts are rejected.
    #[arg(long, value_name = "HOST[:PORT]", requires = "http")]
    http_host: Vec<String>,
}

/// Network access of sandboxed commands.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum McpNetwork {
    /// Everything the host reaches.
    Full,
    /// Servers on the host's loopback.
    Loopback,
}

/// What commands and tools may write.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum McpSandbox {
    /// Nothing. Writing tools are not offered.
    ReadOnly,
    /// The workspace and temporary directories.
    WorkspaceWrite,
    /// Everything this account may write, without a sandbox.
    None,
}

impl McpCommand {
    /// Serves MCP clients until shutdown.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let http_server = match self.http {
            Some(address) => Some(McpHttpServer::open(address, &self)?),
            None => None,
        };
        if self.sandbox != McpSandbox::WorkspaceWrite
            && (self.allow_git || !self.writable.is_empty())
        {
            let what = "--writable and --allow-git need --sandbox workspace-write";
            return Err(CommandFailure::usage(what));
        }
        let env = McpEnvironment::open(&self.env_args, self.in_process).await?;
        let workspace = env.workspace(&self.workspace, self.access(), self.network());
        let workspace = workspace.await?.with_git(match self.allow_git {
            true => GitAccess::Writable,
            false => GitAccess::Protected,
        });
        let workspace = workspace.with_more(env.paths(&self.writable).await?);
        let (environment, options) = (env.environment, env.options);
        let version = env!("CARGO_PKG_VERSION");
        let tools = McpTools::with_options(environment, workspace, version, options);
        let mut stop = ShutdownSignal::new(StdinClose::Ignored).map_err(CommandFailure::failed)?;
        match http_server {
            Some(http_server) => http_server.serve(tools, &mut stop).await?,
            None => {
                let served = tokio::select! {
                    served = tools.serve(tokio::io::stdin(), tokio::io::stdout()) => served,
                    () = stop.recv() => Ok(()),
                };
                tools.shut_down().await;
                served.map_err(stdio_failure)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn access(&self) -> WorkspaceAccess {
        match self.sandbox {
            McpSandbox::ReadOnly => WorkspaceAccess::ReadOnly,
            McpSandbox::WorkspaceWrite => WorkspaceAccess::WorkspaceWrite,
            McpSandbox::None => WorkspaceAccess::Open,
        }
    }

    fn network(&self) -> NetworkMode {
        match self.network {
            Some(McpNetwork::Full) => NetworkMode::Open,
            Some(McpNetwork::Loopback) => NetworkMode::Loopback,
            None => NetworkMode::Closed,
        }
    }
}

/// Explains the problem to a user who started this on a terminal.
fn stdio_failure(error: exec_tools::mcp::McpStdioError) -> CommandFailure {
    CommandFailure::failed(error_chain(&error))
        .next("this command is meant to be started by an MCP client; --http serves several")
}

/// Maximum connections. Each client holds a few: one for events, one per pending call.
const MAX_CONNECTIONS: usize = 512;
/// Limit for receiving a request head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Bound socket, and who may connect.
#[derive(Debug)]
struct McpHttpServer {
    listener: StdListener,
    address: SocketAddr,
    auth: AuthPolicy,
    hosts: Vec<String>,
}

impl McpHttpServer {
    /// Binds the socket.
    fn open(address: SocketAddr, line: &McpCommand) -> Result<Self, CommandFailure> {
        let auth = match &line.http_token_file {
            Some(path) => {
                let unreadable = |why: &dyn std::fmt::Display| {
                    let what = format!("cannot read the token in `{}`: {why}", path.display());
                    CommandFailure::new(FailureKind::NotFound, what)
                };
                let token = read_text(path).map_err(|error| unreadable(&error))?;
                if token.trim().is_empty() {
                    return Err(unreadable(&"it is empty"));
                }
                AuthPolicy::CapabilityToken(TokenDigest::of_token(&token))
            }
            None if address.ip().is_loopback() => AuthPolicy::Open,
            None => {
                let what = format!(
                    "{address} is reachable from other machines, which could run commands here"
                );
                return Err(CommandFailure::usage(what)
                    .next("give --http-token-file, or listen on 127.0.0.1"));
            }
        };
        let bound = StdListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = bound.map_err(|error| {
            let what = format!("cannot listen on {address}: {error}");
            CommandFailure::new(FailureKind::Unreachable, what).next("port 0 picks a free one")
        })?;
        let mut hosts = line.http_host.clone();
        hosts.push(address.ip().to_string());
        Ok(Self {
            listener,
            address,
            auth,
            hosts,
        })
    }

    /// Prints the URL and serves clients until shutdown.
    async fn serve(self, tools: McpTools, stop: &mut ShutdownSignal) -> Result<(), CommandFailure> {
        let failed = |error| CommandFailure::failed(format!("cannot listen: {error}"));
        let listener = TcpListener::from_std(self.listener).map_err(failed)?;
        let url = format!("http://{}{}\n", self.address, McpHttpEndpoint::PATH);
        std::io::stdout()
            .lock()
            .write_all(url.as_bytes())
            .map_err(failed)?;
        let auth = self.auth;
        let options = McpHttpOptions {
            authenticate: Arc::new(move |authorization| {
                let now = UnixSeconds::from(SystemTime::now());
                auth.check(authorization, now)
                    .map(drop)
                    .map_err(rejection_text)
            }),
            hosts: self.hosts,
        };
        let endpoint = McpHttpEndpoint::new(tools, options);
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.recv() => break,
                Some(_) = connections.join_next() => {}
                (stream, permit) = accept(&listener, &permits) => {
                    let endpoint = endpoint.clone();
                    connections.spawn(async move {
                        serve_connection(stream, endpoint).await;
                        drop(permit);
                    });
                }
            }
        }
        endpoint.close().await;
        Ok(())
    }
}

/// Waits for a permit, then for a connection.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (TcpStream, Option<tokio::sync::OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let permit = permits.clone().acquire_owned().await.ok();
    let (stream, _) = accept_tcp(listener).await;
    (stream, permit)
}

/// Explains why a client is rejected.
fn rejection_text(rejection: AuthRejection) -> String {
    let what = match rejection {
        AuthRejection::MissingToken => "the bearer token is missing",
        AuthRejection::InvalidHeader => "the authorization header must be `Bearer` and a token",
        AuthRejection::InvalidToken
        | AuthRejection::InvalidJwt
        | AuthRejection::ExpiredJwt
        | AuthRejection::JwtNotYetValid
        | AuthRejection::IssuerMismatch
        | AuthRejection::AudienceMismatch
        | _ => "the bearer token is wrong",
    };
    format!("{what}: send `Authorization: Bearer` and the token of --http-token-file\n")
}

async fn serve_connection(stream: TcpStream, endpoint: McpHttpEndpoint) {
    let service = service_fn(|request: Request<Incoming>| {
        let endpoint = endpoint.clone();
        async move { Ok::<_, Infallible>(endpoint.handle(request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "http connection failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_without_token_is_told_which_header_to_send() {
        for rejection in [
            AuthRejection::MissingToken,
            AuthRejection::InvalidHeader,
            AuthRejection::InvalidToken,
        ] {
            let text = rejection_text(rejection);
            assert!(text.contains("Authorization: Bearer"), "{text}");
            assert!(!text.contains("websocket"), "{text}");
        }
    }
}
