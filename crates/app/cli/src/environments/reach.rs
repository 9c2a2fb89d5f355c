//! How the server of an environment is reached.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use exec_client::{
    client::ExecServerClient,
    connect::{
        RelayExecServerConnectArgs, RemoteExecServerConnectArgs, StdioExecServerConnectArgs,
    },
    error::ExecServerError,
};
use exec_env::environment::Environment;
use exec_environments::manager::{
    EnvironmentId, EnvironmentManager, EnvironmentSource, OpenError, Start,
};
use exec_registry::{
    api::EnvironmentId as EnvironmentName,
    credentials::{AccountId, Credentials, HarnessToken, Token},
    http::BaseUrl,
};
use exec_transport::connect::{Address, BearerToken, CONNECT_TIMEOUT, Program};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::runtime::Handle;

use crate::{
    environments::EnvironmentSelection,
    local_machine::{ExecServerRuntimePaths, LocalMachine},
    outbound_network::OutboundNetwork,
    token_file::TokenFile,
};

/// How the server of an environment is reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum EnvEndpoint {
    /// It listens, and is connected to as soon as there is an environment.
    Url(UrlEndpoint),
    /// It is started, when the environment is first needed.
    Program(ProgramEndpoint),
    /// It is registered with a registry, and is spoken with through a relay, end to end encrypted. It
    /// is connected to as soon as there is an environment.
    Relay(RelayEndpoint),
}

/// A server that listens. `Debug` hides what may be secret.
#[derive(Clone, Eq, PartialEq)]
pub struct UrlEndpoint {
    /// Where: a `ws://` or `wss://` URL.
    pub url: String,
    /// What is presented as `Authorization: Bearer`.
    pub auth_bearer_token: Option<BearerToken>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long the server may take to answer `initialize`.
    pub initialize_timeout: Duration,
}

impl UrlEndpoint {
    /// A server without a token, with the usual patience.
    pub(crate) fn new(url: &str) -> Self {
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
        f.debug_struct("UrlReach")
            .field("url", &self.url.parse::<Address>())
            .field("auth_bearer_token", &self.auth_bearer_token)
            .field("connect_timeout", &self.connect_timeout)
            .field("initialize_timeout", &self.initialize_timeout)
            .finish()
    }
}

/// A server that is started and spoken with over its standard input and output.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProgramEndpoint {
    /// What is started.
    pub program: Program,
    /// How long it may take to answer `initialize`.
    pub initialize_timeout: Duration,
}

/// A server behind a relay.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RelayEndpoint {
    /// The registry that knows it.
    pub registry_url: BaseUrl,
    /// Its name there.
    pub environment_id: EnvironmentName,
    /// What is presented to the registry.
    pub auth_token: TokenSource,
    /// Whose account is used, for a registry that asks for it.
    pub chatgpt_account_id: Option<AccountId>,
    /// How long opening the connection to the relay may take.
    pub connect_timeout: Duration,
    /// How long the server may take to answer `initialize`.
    pub initialize_timeout: Duration,
}

/// Where the token for a registry is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TokenSource {
    /// Here.
    Value(Token),
    /// In the variable of this name, which was read.
    Variable(String, Token),
    /// In this file, which is read for each connection: somebody may put a fresh one there.
    File(PathBuf),
}

/// Reads the address of a server on a network.
pub(super) fn network_address(url: &str) -> Option<Address> {
    match url.parse() {
        Ok(address @ Address::Network(_)) => Some(address),
        Ok(Address::Unix(_)) | Err(_) => None,
    }
}

/// How long a server may take to answer unless the file says otherwise.
pub(super) const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(10);

/// How servers know the client of an environment in their logs.
const CLIENT_NAME: &str = "exec-server-environment";

impl EnvironmentSelection {
    /// Makes a manager of the environments. Servers that listen are connected to from now on, others
    /// are started when somebody asks for them; the local environment starts nothing before its first
    /// command, for which it takes `paths`.
    ///
    /// # Errors
    /// Outside a tokio runtime, and when this machine is selected and cannot be looked at. A server
    /// that cannot be reached is no error here: whoever asks for its environment is told.
    pub fn into_manager(
        self,
        paths: &ExecServerRuntimePaths,
    ) -> anyhow::Result<EnvironmentManager> {
        let runtime = Handle::try_current().context("environments need a runtime")?;
        let manager = EnvironmentManager::new(runtime);
        if self.local {
            let machine = LocalMachine::new(paths)?;
            let source = Arc::new(LocalSource { machine });
            manager.insert(EnvironmentId::local(), source, Start::Eager)?;
        }
        for remote in self.remotes {
            let start = match &remote.reach {
                EnvEndpoint::Url(_) | EnvEndpoint::Relay(_) => Start::Eager,
                EnvEndpoint::Program(_) => Start::Lazy,
            };
            let source = Arc::new(RemoteSource {
                reach: remote.reach,
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
    fn open(&self) -> BoxFuture<'static, Result<Environment, OpenError>> {
        ready(Ok(self.machine.environment())).boxed()
    }
}

/// Connects to a server.
#[derive(Debug)]
struct RemoteSource {
    reach: EnvEndpoint,
}

impl EnvironmentSource for RemoteSource {
    fn open(&self) -> BoxFuture<'static, Result<Environment, OpenError>> {
        let reach = self.reach.clone();
        let connect = async move {
            match reach.connect(CLIENT_NAME).await {
                Ok(client) => Ok(client.environment()),
                Err(EndpointError::Settings(error)) => Err(OpenError::Connect(error)),
                Err(EndpointError::Connect(error)) => Err(OpenError::Connect(error.into())),
            }
        };
        connect.boxed()
    }
}

impl EnvEndpoint {
    /// Connects to the server, under this client's name. Files and variables that say how are read now,
    /// for each connection. Dropping the future leaves nothing open.
    pub(crate) async fn connect(
        self,
        client_name: &str,
    ) -> Result<ExecServerClient, EndpointError> {
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
        };
        Ok(client?)
    }
}

/// Why there is no connection to the server of an environment.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    /// Caller: a file or a variable that says how to connect is no use.
    #[error(transparent)]
    Settings(Box<dyn std::error::Error + Send + Sync>),
    /// As the client says.
    #[error(transparent)]
    Connect(#[from] ExecServerError),
}

/// Puts together what a relay's server is reached with, now: files and variables are read for each
/// connection.
fn relay_args(
    reach: RelayEndpoint,
) -> Result<RelayExecServerConnectArgs, Box<dyn std::error::Error + Send + Sync>> {
    let network = OutboundNetwork::find(&|name| std::env::var_os(name), &reach.registry_url)?;
    let credentials: Arc<dyn Credentials> = match reach.auth_token {
        TokenSource::Value(token) | TokenSource::Variable(_, token) => {
            Arc::new(HarnessToken::new(token, reach.chatgpt_account_id))
        }
        TokenSource::File(path) => Arc::new(TokenFile::open(&path)?),
    };
    let (registry, environment) = (reach.registry_url.to_string(), reach.environment_id);
    Ok(RelayExecServerConnectArgs {
        credentials: Some(credentials),
        trust: network.trust,
        proxy: network.proxy,
        connect_timeout: reach.connect_timeout,
        initialize_timeout: reach.initialize_timeout,
        ..RelayExecServerConnectArgs::new(registry, environment.as_str(), "", CLIENT_NAME)
    })
}

impl From<UrlEndpoint> for RemoteExecServerConnectArgs {
    fn from(reach: UrlEndpoint) -> Self {
        Self {
            bearer_token: reach.auth_bearer_token,
            connect_timeout: reach.connect_timeout,
            initialize_timeout: reach.initialize_timeout,
            ..Self::new(reach.url, CLIENT_NAME)
        }
    }
}

impl From<ProgramEndpoint> for StdioExecServerConnectArgs {
    fn from(reach: ProgramEndpoint) -> Self {
        let program = reach.program;
        Self {
            env: program.env,
            cwd: program.cwd,
            initialize_timeout: reach.initialize_timeout,
            ..Self::new(program.program, program.args, CLIENT_NAME)
        }
    }
}
