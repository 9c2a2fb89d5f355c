//! Resolves the environment of a command and connects to it.
//!
//! Invariant: a command runs in the requested environment or not at all; it never falls back to
//! this machine.

#[cfg(feature = "mcp")]
mod restarting_connector;
mod route;
mod target_progress;
#[cfg(test)]
mod tests;

use std::{
    cell::{OnceCell, RefCell},
    ffi::OsStr,
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use exec_client::{
    client::ExecServerClient,
    error::{ConnectError, ExecServerError},
};
use exec_connect::shell_quoted;
use exec_env::environment::Environment;
use exec_settings::{
    background_server::{self, OutdatedServer},
    environments::{EndpointError, EnvEndpoint, TokenSource},
    settings_source::VariableLookup,
};
use exec_transport::connect::{ServerAddress, WebSocketScheme};
use exec_wire::{environment::EnvironmentInfo, path_uri::PathUri};
use futures_util::future::{BoxFuture, FutureExt, join_all};
use tokio::time::timeout;

use crate::{
    command::{
        directory_env::DirectoryEnv,
        failure::{CommandFailure, FailureKind},
        process_session::print_notice,
        quantity::DurationArg,
    },
    terminal_detection::DetectedTerminal,
};

pub(crate) use self::{
    route::{EnvRoute, RouteKind, select},
    target_progress::TerminalPrompts,
};

/// Environment with an open connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectedEnv {
    /// Name shown to users.
    pub(crate) name: String,
    /// Name as given with `--env`, if any.
    env_name: Option<String>,
    /// Connection to the server.
    pub(crate) client: ExecServerClient,
    /// Facts about the server's host.
    pub(crate) info: EnvironmentInfo,
    /// Route that was used.
    route: EnvRoute,
    /// Whether it is this machine. Commands then inherit the working directory and the variables.
    pub(crate) is_this_machine: bool,
}

impl ConnectedEnv {
    /// Connects to the requested environment. Starts the local server if none is listening, and
    /// upgrades one of an earlier version that has no other connection.
    pub(crate) async fn open(env_args: &EnvArgs) -> Result<Self, CommandFailure> {
        let env = Self::open_any_version(env_args).await?;
        let RouteKind::Local(socket) = &env.route.route_kind else {
            return Ok(env);
        };
        let Some(outdated) = OutdatedServer::of(&env.client) else {
            return Ok(env);
        };
        if outdated.upgrade_if_idle(socket, &env.client).await {
            // A session of the new server has its extensions.
            return Self::open_any_version(env_args).await;
        }
        print_notice(&outdated.to_string());
        Ok(env)
    }

    /// Connects to the requested environment, whatever the version of a running local server.
    pub(crate) async fn open_any_version(env_args: &EnvArgs) -> Result<Self, CommandFailure> {
        Self::open_with(env_args, TerminalPrompts::Allowed).await
    }

    /// Connects to the requested environment for a client that may use the terminal itself: nothing
    /// prompts there.
    pub(crate) async fn open_unattended(env_args: &EnvArgs) -> Result<Self, CommandFailure> {
        Self::open_with(env_args, TerminalPrompts::Forbidden).await
    }

    async fn open_with(
        env_args: &EnvArgs,
        prompts: TerminalPrompts,
    ) -> Result<Self, CommandFailure> {
        let route = EnvRoute::requested(env_args, &|name| std::env::var_os(name))?;
        let env = Self::connect_route(route, prompts).await?;
        if let Some(DurationArg(limit)) = env_args.reconnect_timeout {
            env.client.set_reconnect_timeout(limit);
        }
        let env_name = env_args.env.clone();
        Ok(Self { env_name, ..env })
    }

    /// Connects to the server of this machine, ignoring the default environment. Starts a server
    /// if none is listening, also when a later reconnect finds none.
    #[cfg(feature = "mcp")]
    pub(crate) async fn open_local(env_args: &EnvArgs) -> Result<Self, CommandFailure> {
        let route = EnvRoute::local(&|name| std::env::var_os(name));
        let RouteKind::Local(socket) = &route.route_kind else {
            return Self::connect_route(route, TerminalPrompts::Forbidden).await;
        };
        let client = restarting_connector::connect_restarting(socket, &client_name()).await?;
        if let Some(DurationArg(limit)) = env_args.reconnect_timeout {
            client.set_reconnect_timeout(limit);
        }
        Ok(Self {
            name: route.name.clone(),
            env_name: env_args.env.clone(),
            info: client.info().await.map_err(CommandFailure::from)?,
            client,
            route,
            is_this_machine: true,
        })
    }

    /// Opens a second connection to the same environment, in its own session.
    pub(crate) async fn open_again(&self) -> Result<Self, CommandFailure> {
        let env = Self::connect_route(self.route.clone(), TerminalPrompts::Allowed).await?;
        let env_name = self.env_name.clone();
        Ok(Self { env_name, ..env })
    }

    /// Connects along a route.
    pub(crate) async fn connect_route(
        route: EnvRoute,
        prompts: TerminalPrompts,
    ) -> Result<Self, CommandFailure> {
        let EnvRoute { name, route_kind } = route.clone();
        let (client, is_this_machine) = match route_kind {
            RouteKind::Local(socket) => (
                background_server::connect(&socket, &client_name()).await?,
                true,
            ),
            RouteKind::Named(endpoint) => {
                let connecting = connect(&name, endpoint, EnvOrigin::Named, prompts);
                (connecting.await?, false)
            }
            RouteKind::Typed(endpoint) => {
                let connecting = connect(&name, endpoint, EnvOrigin::Typed, prompts);
                (connecting.await?, false)
            }
        };
        let info = client.info().await.map_err(CommandFailure::from)?;
        Ok(Self {
            name,
            env_name: None,
            client,
            info,
            route,
            is_this_machine,
        })
    }

    /// Returns a command line that the user can type for this environment.
    pub(crate) fn line(&self, command: &str, arguments: &[&str]) -> String {
        let env = self.env_name.iter().flat_map(|name| ["-E", name]);
        let words = ["exec-server", command].into_iter().chain(env);
        let words = words.chain(arguments.iter().copied()).map(shell_quoted);
        words.collect::<Vec<_>>().join(" ")
    }

    /// Returns the environment's backend, files, HTTP client and catalog.
    pub(crate) fn environment(&self) -> Environment {
        self.client.environment()
    }

    /// Resolves a typed path: a `file:` URI, an absolute path, a path below the home (`~/x`), or a
    /// path relative to the working directory (on this machine) or to the server's directory. Keeps
    /// bytes that are not UTF-8; the host resolves `..` after a symbolic link.
    pub(crate) async fn path(&self, typed: impl AsRef<OsStr>) -> Result<PathUri, CommandFailure> {
        let base = match self.is_this_machine {
            true => Some(working_directory()?),
            false => None,
        };
        let files = self.environment().files;
        route::read(typed.as_ref(), base, &self.info, &*files).await
    }
}

/// Returns the working directory of this program.
pub(crate) fn working_directory() -> Result<PathBuf, CommandFailure> {
    std::env::current_dir().map_err(|error| {
        CommandFailure::failed(format!("cannot determine the working directory: {error}"))
    })
}

async fn connect(
    name: &str,
    endpoint: EnvEndpoint,
    origin: EnvOrigin,
    prompts: TerminalPrompts,
) -> Result<ExecServerClient, CommandFailure> {
    let connecting = if let EnvEndpoint::Target(target) = &endpoint {
        let connector = target_progress::connector(name, target, prompts);
        target.connect_with(connector, &client_name()).await
    } else {
        endpoint.clone().connect(&client_name()).await
    };
    let client = connecting.map_err(|error| connect_failure(name, &endpoint, origin, error))?;
    if matches!(endpoint, EnvEndpoint::Relay(_) | EnvEndpoint::Target(_)) {
        drain_connection(&client);
    }
    Ok(client)
}

/// Returns the client name that servers write to their logs.
fn client_name() -> String {
    let terminal = DetectedTerminal::detect(&|name| std::env::var_os(name));
    let version = env!("CARGO_PKG_VERSION");
    format!("exec-server/{version} ({})", terminal.token())
}

/// Selects the environment.
#[derive(Args, Clone, Debug, Default)]
pub struct EnvArgs {
    /// Environment: a name from `env list`, `local`, the ws://, wss:// or unix:// URL of a server,
    /// or any place with a shell, such as ssh:HOST, docker:NAME or k8s:NAMESPACE/POD [default: the
    /// one of the directory (`use`), else the one set with `env default`, else this machine].
    #[arg(
        short = 'E',
        long = "env",
        value_name = "NAME|URL|TARGET",
        env = "EXEC_SERVER_ENV",
        help_heading = ENVIRONMENT
    )]
    pub env: Option<String>,

    /// File with the token for a server at a URL; EXEC_SERVER_TOKEN holds the token itself.
    #[arg(
        long,
        value_name = "FILE",
        env = "EXEC_SERVER_TOKEN_FILE",
        help_heading = ENVIRONMENT
    )]
    pub token_file: Option<PathBuf>,

    /// Gives up after this time without a connection, such as 30s or 10m [default: as long as the
    /// server keeps the session].
    #[arg(
        long,
        value_name = "SPAN",
        env = "EXEC_SERVER_RECONNECT_TIMEOUT",
        help_heading = ENVIRONMENT
    )]
    pub reconnect_timeout: Option<DurationArg>,

    /// Leaves nothing in the place with a shell: its server ends with the connection, and so does
    /// everything it runs.
    #[arg(long, hide_short_help = true, help_heading = ENVIRONMENT)]
    pub ephemeral: bool,
}

const ENVIRONMENT: &str = "Environment";

impl EnvArgs {
    /// Names another environment.
    pub(crate) fn with_env(&self, name: &str) -> Self {
        Self {
            env: Some(name.to_owned()),
            ..self.clone()
        }
    }

    /// Names the environment of the working directory unless flag or variable name one. Returns the
    /// file that did.
    pub(crate) fn with_directory(
        &self,
        lookup: VariableLookup<'_>,
    ) -> (Self, Option<DirectoryEnv>) {
        let mut env_args = self.clone();
        if self.env.as_deref().is_some_and(|name| !name.is_empty()) {
            return (env_args, None);
        }
        let directory = directory_env(lookup);
        env_args.env = directory.as_ref().and_then(|env| env.name.clone());
        (env_args, directory)
    }
}

/// Returns the environment of the working directory if the user has approved it. Reads it, and
/// reports an ignored one, once per command.
pub(crate) fn directory_env(lookup: VariableLookup<'_>) -> Option<DirectoryEnv> {
    let read = || {
        let directory = std::env::current_dir().ok()?;
        let (why, env) = match DirectoryEnv::find(&directory, lookup) {
            Ok(env) => (env.as_ref().and_then(DirectoryEnv::objection), env),
            Err(error) => (Some(format!("ignoring an environment: {error}")), None),
        };
        let Some(why) = why else { return env };
        print_notice(&why);
        None
    };
    let cached = DIRECTORY_ENV.try_with(|cached| cached.get_or_init(read).clone());
    cached.unwrap_or_else(|_| read())
}

/// How the user specified the environment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum EnvOrigin {
    /// By name.
    Named,
    /// By URL.
    Typed,
}

/// Explains why a connection failed, and suggests the next step.
fn connect_failure(
    name: &str,
    endpoint: &EnvEndpoint,
    origin: EnvOrigin,
    error: EndpointError,
) -> CommandFailure {
    let error = match error {
        EndpointError::Settings(error) => {
            let what = format!(
                "environment `{name}`: {:#}",
                anyhow::Error::from_boxed(error)
            );
            return CommandFailure::new(FailureKind::UnknownEnvironment, what);
        }
        EndpointError::Connect(ExecServerError::Connect(error)) => error,
        EndpointError::Connect(error) => return error.into(),
    };
    let failure = |kind| CommandFailure::new(kind, format!("cannot reach `{name}`: {error}"));
    if let EnvEndpoint::Target(_) = endpoint {
        // Its errors name the next step themselves.
        return failure(FailureKind::Unreachable);
    }
    match &error {
        ConnectError::Denied(_) => failure(FailureKind::NotAllowed).next(match origin {
            EnvOrigin::Typed => {
                "pass its token with --token-file FILE, or in EXEC_SERVER_TOKEN".to_owned()
            }
            EnvOrigin::Named => access_denied(endpoint),
        }),
        ConnectError::Offline(_) => {
            failure(FailureKind::Unreachable).next(environment_offline(endpoint))
        }
        ConnectError::Address(_) => match endpoint {
            EnvEndpoint::Program(_) => failure(FailureKind::Unreachable)
                .next("check its command in environments.toml by running it yourself"),
            EnvEndpoint::Url(_) | EnvEndpoint::Relay(_) | EnvEndpoint::Target(_) => {
                failure(FailureKind::Usage)
            }
        },
        ConnectError::Link(_) => {
            failure(FailureKind::Unreachable).next(unreachable(name, endpoint))
        }
        ConnectError::Busy(_) => {
            failure(FailureKind::Unreachable).next("try again in a moment, or ask its operator")
        }
        ConnectError::Rejected(_) => match is_tls(endpoint) {
            true => failure(FailureKind::Unreachable)
                .next("check the URL; SSL_CERT_FILE names certificates to trust"),
            false => failure(FailureKind::Unreachable)
                .next("check that the URL belongs to an exec-server"),
        },
        ConnectError::Replaced(_)
        | ConnectError::Refused(_)
        | ConnectError::Timeout(_)
        | ConnectError::Broken(_)
        | ConnectError::Malformed(_)
        | ConnectError::WrongSession { .. }
        | _ => failure(FailureKind::Unreachable).next("check that an exec-server answers there"),
    }
}

/// Suggests where to fix the token.
fn access_denied(endpoint: &EnvEndpoint) -> String {
    match endpoint {
        EnvEndpoint::Relay(relay) => match &relay.auth_token {
            TokenSource::Variable(name, _) => format!("check the token in {name}"),
            TokenSource::File(path) => {
                let path = path.display();
                format!("check the token in {path}, which environments.toml names")
            }
            TokenSource::Value(_) => "check its token in environments.toml".to_owned(),
        },
        EnvEndpoint::Url(url) if url.auth_bearer_token.is_none() => {
            "pass its token with --token-file FILE, or name it in environments.toml".to_owned()
        }
        EnvEndpoint::Url(_) | EnvEndpoint::Program(_) | EnvEndpoint::Target(_) => {
            "check its token in environments.toml".to_owned()
        }
    }
}

fn environment_offline(endpoint: &EnvEndpoint) -> String {
    match endpoint {
        EnvEndpoint::Relay(relay) => format!(
            "start it there: exec-server --remote {} --environment-id {} --remote-token-file FILE",
            relay.registry_url, relay.environment_id
        ),
        EnvEndpoint::Url(_) | EnvEndpoint::Program(_) | EnvEndpoint::Target(_) => {
            "start its server".to_owned()
        }
    }
}

fn unreachable(name: &str, endpoint: &EnvEndpoint) -> String {
    match endpoint {
        EnvEndpoint::Url(url) => match url.url.parse::<ServerAddress>() {
            Ok(address @ (ServerAddress::Unix(_) | ServerAddress::Network(_)))
                if address.is_private() =>
            {
                format!("start a server there: exec-server --listen {address}")
            }
            Ok(_) | Err(_) => "check the network, and that a server listens there".to_owned(),
        },
        EnvEndpoint::Relay(relay) => {
            format!("check the network, and the hub at {}", relay.registry_url)
        }
        EnvEndpoint::Program(_) => format!("check the command of `{name}` in environments.toml"),
        EnvEndpoint::Target(_) => "check the way there by hand".to_owned(),
    }
}

fn is_tls(endpoint: &EnvEndpoint) -> bool {
    match endpoint {
        EnvEndpoint::Url(url) => matches!(
            url.url.parse::<ServerAddress>(),
            Ok(ServerAddress::Network(host)) if host.scheme == WebSocketScheme::Wss
        ),
        EnvEndpoint::Relay(relay) => relay.registry_url.url().scheme() == "https",
        EnvEndpoint::Program(_) | EnvEndpoint::Target(_) => false,
    }
}

/// Limit for draining. The client allows its peer one second; the rest is for handles that are
/// still in use.
const TIMEOUT: Duration = Duration::from_millis(1200);

tokio::task_local! {
    /// Connections that the running command has opened.
    static OPEN_CONNECTIONS: RefCell<Vec<BoxFuture<'static, ()>>>;
    /// Environment of the working directory, once it was read.
    static DIRECTORY_ENV: OnceCell<Option<DirectoryEnv>>;
}

/// Runs `work`, then waits until the connections it opened have closed. `work` has dropped its
/// handles by then.
pub(crate) async fn drain_connections<T>(work: impl Future<Output = T>) -> T {
    OPEN_CONNECTIONS
        .scope(RefCell::default(), async {
            let output = DIRECTORY_ENV.scope(OnceCell::new(), work).await;
            let opened = OPEN_CONNECTIONS.with(RefCell::take);
            if !opened.is_empty() {
                // Connections that do not close in time are abandoned.
                drop(timeout(TIMEOUT, join_all(opened)).await);
            }
            output
        })
        .await
}

/// Registers a connection to drain. Only [`drain_connections`] waits for it.
fn drain_connection(client: &ExecServerClient) {
    let ended = client.ended().boxed();
    let _outside = OPEN_CONNECTIONS.try_with(|opened| opened.borrow_mut().push(ended));
}
