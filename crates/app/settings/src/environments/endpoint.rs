//! How to connect to the server of an environment.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use exec_client::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    connect::{
        RelayExecServerConnectArgs, RemoteExecServerConnectArgs, StdioExecServerConnectArgs,
    },
    error::ExecServerError,
};
use exec_connect::{
    TargetPrograms,
    connector::{ServerLifetime, TargetConnector},
    dist::DistSources,
    target::Target,
};
use exec_env::environment::Environment;
use exec_environments::manager::{
    EnvironmentId, EnvironmentManager, EnvironmentOpenError, EnvironmentSource, StartMode,
};
use exec_registry::{
    api::RegistryEnvironmentId as EnvironmentName,
    credentials::{AccountId, Credentials, FixedCredentials, RegistryToken},
    http::BaseUrl,
};
use exec_transport::connect::{BearerToken, CONNECT_TIMEOUT, ServerAddress, ServerProgram};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::runtime::Handle;

use crate::{
    environments::EnvironmentSelection,
    local_machine::{ExecServerRuntimePaths, LocalMachine},
    outbound_network::OutboundNetwork,
    settings_source::{self, VariableLookup},
    token_file::TokenFile,
};

/// How to connect to the server of an environment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum EnvEndpoint {
    /// Listening server. Connected as soon as the environment exists.
    Url(UrlEndpoint),
    /// Program that is started when the environment is first used.
    Program(ProgramEndpoint),
    /// Executor behind a relay, end-to-end encrypted. Connected as soon as the environment exists.
    Relay(RelayEndpoint),
    /// Place with a shell, which becomes an environment when it is first used.
    Target(TargetEndpoint),
}

/// Listening server. `Debug` hides possible secrets.
#[derive(Clone, Eq, PartialEq)]
pub struct UrlEndpoint {
    /// `ws://` or `wss://` URL.
    pub url: String,
    /// Token for `Authorization: Bearer`.
    pub auth_bearer_token: Option<BearerToken>,
    /// Connect timeout.
    pub connect_timeout: Duration,
    /// Timeout of `initialize`.
    pub initialize_timeout: Duration,
}

impl UrlEndpoint {
    /// Creates an endpoint without a token and with default timeouts.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            auth_bearer_token: None,
            connect_timeout: CONNECT_TIMEOUT,
            initialize_timeout: INITIALIZE_TIMEOUT,
        }
    }
}

impl fmt::Debug for UrlEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UrlEndpoint")
            .field("url", &self.url.parse::<ServerAddress>())
            .field("auth_bearer_token", &self.auth_bearer_token)
            .field("connect_timeout", &self.connect_timeout)
            .field("initialize_timeout", &self.initialize_timeout)
            .finish()
    }
}

/// Server that is started and speaks over stdin and stdout.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProgramEndpoint {
    /// Program to start.
    pub program: ServerProgram,
    /// Timeout of `initialize`.
    pub initialize_timeout: Duration,
}

/// Place with a shell.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TargetEndpoint {
    /// The place.
    pub target: Target,
    /// How long its server lives.
    pub lifetime: ServerLifetime,
    /// Timeout of `initialize`.
    pub initialize_timeout: Duration,
}

impl TargetEndpoint {
    /// Creates an endpoint that uses the background server there.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            lifetime: ServerLifetime::default(),
            initialize_timeout: INITIALIZE_TIMEOUT,
        }
    }

    /// Creates a connector that uses the configured programs. Starts nothing yet.
    pub fn connector(&self, lookup: VariableLookup<'_>) -> TargetConnector {
        let program = |name| lookup(name).filter(|text| !text.is_empty());
        TargetConnector {
            programs: TargetPrograms {
                ssh: program("EXEC_SERVER_SSH"),
                docker: program("EXEC_SERVER_DOCKER"),
                podman: program("EXEC_SERVER_PODMAN"),
                kubectl: program("EXEC_SERVER_KUBECTL"),
            },
            dist: dist_sources(lookup),
            lifetime: self.lifetime,
            ..TargetConnector::new(self.target.clone())
        }
    }

    /// Connects with a connector under this client name.
    ///
    /// # Errors
    /// When the place cannot be reached or used.
    pub async fn connect_with(
        &self,
        connector: TargetConnector,
        client_name: &str,
    ) -> Result<ExecServerClient, EndpointError> {
        let options = ExecServerClientConnectOptions {
            client_name: client_name.to_owned(),
            initialize_timeout: self.initialize_timeout,
            ..ExecServerClientConnectOptions::default()
        };
        Ok(ExecServerClient::connect_with(Arc::new(connector), options).await?)
    }
}

/// Returns where programs for other machines are sought.
pub fn dist_sources(lookup: VariableLookup<'_>) -> DistSources {
    DistSources::new(settings_source::path(lookup, "EXEC_SERVER_DIST"))
}

/// Server behind a relay.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RelayEndpoint {
    /// Registry that lists it.
    pub registry_url: BaseUrl,
    /// Its name there.
    pub environment_id: EnvironmentName,
    /// Token for the registry.
    pub auth_token: TokenSource,
    /// Account, for a registry that requires it.
    pub chatgpt_account_id: Option<AccountId>,
    /// Timeout of the connection to the relay.
    pub connect_timeout: Duration,
    /// Timeout of `initialize`.
    pub initialize_timeout: Duration,
}

/// Source of the token for a registry.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TokenSource {
    /// The token itself.
    Value(RegistryToken),
    /// The token, read from the variable of this name.
    Variable(String, RegistryToken),
    /// This file, read for each connection, because it may be replaced.
    File(PathBuf),
}

/// Parses the address of a server on a network.
pub(super) fn network_address(url: &str) -> Option<ServerAddress> {
    match url.parse() {
        Ok(address @ ServerAddress::Network(_)) => Some(address),
        Ok(ServerAddress::Unix(_)) | Err(_) => None,
    }
}

/// Default timeout of `initialize`.
pub(super) const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(10);

/// Client name in the logs of servers.
const CLIENT_NAME: &str = "exec-server-environment";

impl EnvironmentSelection {
    /// Builds a manager of the environments. Connects to listening servers now and starts programs
    /// on demand; the local environment starts nothing before its first command, for which it uses
    /// `paths`.
    ///
    /// # Errors
    /// Outside a tokio runtime, and when this machine is selected but cannot be inspected. An
    /// unreachable server is not an error here: using its environment reports it.
    pub fn into_manager(
        self,
        paths: &ExecServerRuntimePaths,
    ) -> anyhow::Result<EnvironmentManager> {
        let runtime = Handle::try_current().context("environments require a tokio runtime")?;
        let manager = EnvironmentManager::new(runtime);
        if self.local {
            let machine = LocalMachine::new(paths)?;
            let source = Arc::new(LocalSource { machine });
            manager.insert(EnvironmentId::local(), source, StartMode::Eager)?;
        }
        for remote in self.remotes {
            let start = match &remote.endpoint {
                EnvEndpoint::Url(_) | EnvEndpoint::Relay(_) => StartMode::Eager,
                EnvEndpoint::Program(_) | EnvEndpoint::Target(_) => StartMode::Lazy,
            };
            let source = Arc::new(RemoteSource {
                endpoint: remote.endpoint,
            });
            manager.insert(remote.id, source, start)?;
        }
        manager.set_default(self.default)?;
        Ok(manager)
    }
}

/// Opens this machine.
#[derive(Debug)]
struct LocalSource {
    machine: LocalMachine,
}

impl EnvironmentSource for LocalSource {
    fn open(&self) -> BoxFuture<'static, Result<Environment, EnvironmentOpenError>> {
        ready(Ok(self.machine.environment())).boxed()
    }
}

/// Connects to a server.
#[derive(Debug)]
struct RemoteSource {
    endpoint: EnvEndpoint,
}

impl EnvironmentSource for RemoteSource {
    fn open(&self) -> BoxFuture<'static, Result<Environment, EnvironmentOpenError>> {
        let endpoint = self.endpoint.clone();
        let connect = async move {
            match endpoint.connect(CLIENT_NAME).await {
                Ok(client) => Ok(client.environment()),
                Err(EndpointError::Settings(error)) => Err(EnvironmentOpenError::Connect(error)),
                Err(EndpointError::Connect(error)) => {
                    Err(EnvironmentOpenError::Connect(error.into()))
                }
            }
        };
        connect.boxed()
    }
}

impl EnvEndpoint {
    /// Connects to the server under this client name. Reads files and variables anew for each
    /// connection. Dropping the future leaves nothing open.
    ///
    /// # Errors
    /// When a setting is invalid or the server cannot be reached.
    pub async fn connect(self, client_name: &str) -> Result<ExecServerClient, EndpointError> {
        let client_name = client_name.to_owned();
        let client = match self {
            Self::Url(url) => {
                let args = RemoteExecServerConnectArgs {
                    client_name,
                    trust: OutboundNetwork::trust(&|name| std::env::var_os(name)),
                    ..url.into()
                };
                ExecServerClient::connect_websocket(args).await
            }
            Self::Program(program) => {
                let args = StdioExecServerConnectArgs {
                    client_name,
                    ..program.into()
                };
                ExecServerClient::connect_stdio(args).await
            }
            Self::Relay(relay) => {
                let args = RelayExecServerConnectArgs {
                    client_name,
                    ..relay_args(relay).map_err(EndpointError::Settings)?
                };
                ExecServerClient::connect_relay(args).await
            }
            Self::Target(target) => {
                let connector = target.connector(&|name| std::env::var_os(name));
                return target.connect_with(connector, &client_name).await;
            }
        };
        Ok(client?)
    }
}

/// Failure to connect to the server.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Caller: a file or variable is invalid.
    #[error(transparent)]
    Settings(Box<dyn std::error::Error + Send + Sync>),
    /// Error of the client.
    #[error(transparent)]
    Connect(#[from] ExecServerError),
}

/// Builds the arguments for a relay. Reads files and variables anew for each connection.
fn relay_args(
    endpoint: RelayEndpoint,
) -> Result<RelayExecServerConnectArgs, Box<dyn std::error::Error + Send + Sync>> {
    let network = OutboundNetwork::find(&|name| std::env::var_os(name), &endpoint.registry_url)?;
    let credentials: Arc<dyn Credentials> = match endpoint.auth_token {
        TokenSource::Value(token) | TokenSource::Variable(_, token) => {
            let account = endpoint.chatgpt_account_id.as_ref();
            Arc::new(FixedCredentials::harness_token(&token, account))
        }
        TokenSource::File(path) => Arc::new(TokenFile::open(&path)?),
    };
    let (registry, environment) = (endpoint.registry_url.to_string(), endpoint.environment_id);
    Ok(RelayExecServerConnectArgs {
        credentials: Some(credentials),
        trust: network.trust,
        proxy: network.proxy,
        connect_timeout: endpoint.connect_timeout,
        initialize_timeout: endpoint.initialize_timeout,
        ..RelayExecServerConnectArgs::new(registry, environment.as_str(), "", CLIENT_NAME)
    })
}

impl From<UrlEndpoint> for RemoteExecServerConnectArgs {
    fn from(endpoint: UrlEndpoint) -> Self {
        Self {
            bearer_token: endpoint.auth_bearer_token,
            connect_timeout: endpoint.connect_timeout,
            initialize_timeout: endpoint.initialize_timeout,
            ..Self::new(endpoint.url, CLIENT_NAME)
        }
    }
}

impl From<ProgramEndpoint> for StdioExecServerConnectArgs {
    fn from(endpoint: ProgramEndpoint) -> Self {
        let program = endpoint.program;
        Self {
            env: program.env,
            cwd: program.cwd,
            initialize_timeout: endpoint.initialize_timeout,
            ..Self::new(program.program, program.args, CLIENT_NAME)
        }
    }
}
