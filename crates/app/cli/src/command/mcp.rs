//! `exec-server mcp`: the tools for agents, over stdio or HTTP.

mod http;

use std::{
    net::SocketAddr,
    path::{self, PathBuf},
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use exec_env::environment::Environment;
use exec_tools::mcp::{AgentWorkspace, GitAccess, McpTools, NetworkMode, WorkspaceAccess};
use exec_wire::{environment::EnvironmentInfo, path_uri::PathUri};

use crate::{
    command::{
        connect::{ConnectedEnv, EnvArgs},
        failure::{CommandFailure, FailureKind},
        start::NetworkChoice,
    },
    local_machine::{ExecServerRuntimePaths, local_environment},
    shutdown_signal::{ShutdownSignal, StdinClose},
};

/// Serves the tools for agents as an MCP server.
///
/// Without --http it serves one client on stdin and stdout, and exits with it. Processes that a
/// client leaves running end with its session. Without --env it works on this machine in its own
/// process, without a server.
#[derive(Args, Clone, Debug)]
pub struct McpCommand {
    #[command(flatten)]
    env_args: EnvArgs,

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
    network: Option<NetworkChoice>,

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
        let door = match self.http {
            Some(address) => Some(http::McpHttpServer::open(address, &self)?),
            None => None,
        };
        if self.sandbox != McpSandbox::WorkspaceWrite
            && (self.allow_git || !self.writable.is_empty())
        {
            let what = "--writable and --allow-git need --sandbox workspace-write";
            return Err(CommandFailure::new(FailureKind::Usage, what));
        }
        let scene = McpContext::open(&self.env_args).await?;
        let workspace = scene.workspace(&self.workspace, self.access(), self.network());
        let workspace = workspace.await?.with_git(match self.allow_git {
            true => GitAccess::Writable,
            false => GitAccess::Protected,
        });
        let workspace = workspace.with_more(scene.paths(&self.writable).await?);
        let tools = McpTools::new(scene.environment, workspace, env!("CARGO_PKG_VERSION"));
        let mut stop = ShutdownSignal::new(StdinClose::Ignored)
            .map_err(|error| CommandFailure::new(FailureKind::Failed, error))?;
        match door {
            Some(door) => door.serve(tools, &mut stop).await?,
            None => {
                let served = tokio::select! {
                    served = tools.serve(tokio::io::stdin(), tokio::io::stdout()) => served,
                    () = stop.recv() => Ok(()),
                };
                tools.shut_down().await;
                served.map_err(refused)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the file with the token for clients.
    fn token_file(&self) -> Option<&PathBuf> {
        self.http_token_file.as_ref()
    }

    /// Returns additional host names.
    fn hosts(&self) -> &[String] {
        &self.http_host
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
            Some(NetworkChoice::Full) => NetworkMode::Open,
            Some(NetworkChoice::Loopback) => NetworkMode::Loopback,
            None => NetworkMode::Closed,
        }
    }
}

/// Explains the problem to a user who started this on a terminal.
fn refused(error: exec_tools::mcp::McpStdioError) -> CommandFailure {
    use std::error::Error;
    let what = match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    CommandFailure::new(FailureKind::Failed, what)
        .next("this command is meant to be started by an MCP client; --http serves several")
}

/// Environment of the tools, and how its paths are resolved.
#[derive(Debug)]
struct McpContext {
    environment: Environment,
    info: EnvironmentInfo,
    /// `None`: this machine, in this process.
    env: Option<ConnectedEnv>,
}

impl McpContext {
    /// Opens the environment. This machine needs no server: its commands end with this process.
    async fn open(env_args: &EnvArgs) -> Result<Self, CommandFailure> {
        if env_args.env.as_deref().is_none_or(|name| name == "local") {
            let environment = local_environment(&ExecServerRuntimePaths::default())
                .map_err(|error| CommandFailure::new(FailureKind::Failed, format!("{error:#}")))?;
            let info = environment.backend.info().await;
            let info =
                info.map_err(|error| CommandFailure::new(FailureKind::Failed, error.message))?;
            return Ok(Self {
                environment,
                info,
                env: None,
            });
        }
        let env = ConnectedEnv::open(env_args).await?;
        Ok(Self {
            environment: env.environment(),
            info: env.info.clone(),
            env: Some(env),
        })
    }

    /// Builds the workspace.
    async fn workspace(
        &self,
        directories: &[PathBuf],
        access: WorkspaceAccess,
        network: NetworkMode,
    ) -> Result<AgentWorkspace, CommandFailure> {
        let mut roots = self.paths(directories).await?;
        if roots.is_empty() {
            roots.push(self.here().await?);
        }
        let root = roots.remove(0);
        let workspace = AgentWorkspace::new(root, access, network);
        Ok(workspace.with_more(roots).on(&self.info))
    }

    /// Resolves typed directories.
    async fn paths(&self, typed: &[PathBuf]) -> Result<Vec<PathUri>, CommandFailure> {
        let mut paths = Vec::new();
        for typed in typed {
            paths.push(self.path(typed).await?);
        }
        Ok(paths)
    }

    async fn path(&self, typed: &PathBuf) -> Result<PathUri, CommandFailure> {
        match &self.env {
            Some(env) => env.path(typed).await,
            None => {
                let wrong = |error: &dyn std::fmt::Display| {
                    let what = format!("directory `{}`: {error}", typed.display());
                    CommandFailure::new(FailureKind::Usage, what)
                };
                let absolute = path::absolute(typed).map_err(|error| wrong(&error))?;
                if !absolute.is_dir() {
                    let what = format!("`{}` is not a directory", typed.display());
                    return Err(CommandFailure::new(FailureKind::NotFound, what)
                        .next("--workspace and --writable take existing directories"));
                }
                PathUri::from_native(&absolute).map_err(|error| wrong(&error))
            }
        }
    }

    async fn here(&self) -> Result<PathUri, CommandFailure> {
        if self.env.as_ref().is_none_or(|env| env.here) {
            return self.path(&PathBuf::from(".")).await;
        }
        let info = &self.info;
        let theirs = info.cwd.clone().or_else(|| info.user_home_dir.clone());
        theirs.ok_or_else(|| {
            CommandFailure::new(
                FailureKind::Failed,
                "the server reports no working directory",
            )
            .next("set --workspace")
        })
    }
}
