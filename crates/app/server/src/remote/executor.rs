//! Runs an executor or a forwarder until shutdown.

use std::{io::Write, os::fd::AsFd, sync::Arc};

use anyhow::{Context, ensure};
use exec_registry::{
    api::RegistryEnvironmentId,
    credentials::{
        AgentIdentity, AgentIdentitySettings, CredentialPipe, Credentials, FixedCredentials,
        PipeEnd, PipeError, SignIn,
    },
    direct::{self, DirectAuth, DirectExecutor, SigV4Signer},
    executor::{self, DialOptions, ExecutorPresence, RemoteExecutor},
    forward::{ForwardDestination, Forwarder},
    http::{BaseUrl, HttpClient},
    registry::RegistryClient,
};
use exec_relay::identity::NoiseIdentity;
use exec_settings::token_file::TokenFile;
use rustix::fs::{FileType, fstat};
use tokio::sync::watch;

use crate::{
    local_machine::ExecServerRuntimePaths,
    remote::{
        AwsSettings, OutboundNetwork, RemoteCredentials, RemoteEnvironmentConfig, RemoteTransport,
    },
    server_runtime::{ServerRuntime, open_state},
    shutdown_signal::{self, ShutdownSignal, StdinClose},
};

/// Offers this machine through a registry until SIGTERM or SIGINT, or until the end of stdin if
/// tokens are read from it or the configuration says so.
///
/// Nothing listens. With a relay, prints one line to stdout when harnesses can connect for the
/// first time. Harnesses are served like clients of a listener. Lost connections are reopened
/// indefinitely; sessions survive that. Dropping the future closes every connection and kills
/// running processes.
///
/// # Errors
/// When the registry rejects this machine, at first or later, when there are no credentials, or
/// this machine cannot be inspected.
pub async fn run_remote_environment(
    config: RemoteEnvironmentConfig,
    paths: ExecServerRuntimePaths,
) -> anyhow::Result<()> {
    let mut runtime = ServerRuntime::new(&config.server, &paths, open_state(&config.server)?)?;
    let stdin = config
        .credentials
        .remaining_stdin(config.server.stdin_close);
    let mut stop = ShutdownSignal::new(stdin)?;
    runtime.serve_metrics(&config.server).await?;
    // Last, because dropping the processes would kill them.
    runtime.restore().await?;
    let offering = async {
        let OpenedExecutor { kind, stdin } = match open(&config).await {
            Ok(opened) => opened,
            Err(error) => return ignore_closed_pipe(error),
        };
        runtime.machine.warm_up().await;
        runtime.refuse_upgrades(
            "this server is reached through a hub, which another one cannot take over: restart it",
        );
        let links = runtime.serve_links();
        let never = std::future::pending();
        tokio::select! {
            ended = stdin.ended() => ended,
            failed = async {
                match kind {
                    ExecutorKind::Relay(executor) => {
                        let online = announce(executor.presence(), &config.environment_id);
                        let run = executor.run(links, never);
                        tokio::try_join!(online, async { run.await.map_err(Into::into) }).map(drop)
                    }
                    ExecutorKind::Direct(executor) => executor.run(links, never).await.map_err(Into::into),
                }
            } => failed,
        }
    };
    let outcome = tokio::select! {
        outcome = offering => outcome,
        // The websocket closes without a close frame; its streams end with it.
        () = stop.recv() => Ok(()),
    };
    runtime.shut_down(&mut stop).await;
    outcome
}

/// Prints one line for launchers when harnesses can connect, and nothing after it.
async fn announce(
    mut presence: watch::Receiver<ExecutorPresence>,
    environment: &RegistryEnvironmentId,
) -> anyhow::Result<()> {
    // An executor that ended before it was online has reported why.
    if presence
        .wait_for(|now| *now == ExecutorPresence::Online)
        .await
        .is_ok()
    {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "online {environment}")
            .and_then(|()| stdout.flush())
            .context("cannot write to stdout")?;
    }
    Ok(())
}

/// Kind of executor.
enum ExecutorKind {
    Relay(RemoteExecutor),
    Direct(DirectExecutor),
}

struct OpenedExecutor {
    kind: ExecutorKind,
    stdin: StdinEnd,
}

/// Builds the executor.
async fn open(config: &RemoteEnvironmentConfig) -> anyhow::Result<OpenedExecutor> {
    let RemoteEnvironmentConfig {
        registry_url,
        environment_id,
        network,
        ..
    } = config;
    let http = network.http(registry_url).await?;
    let (direct_auth, pipe) = direct_auth(&config.credentials, environment_id, &http).await?;
    let registry = RegistryClient::new(registry_url.clone(), direct_auth.credentials(), http)?;
    let kind = match config.transport {
        RemoteTransport::Noise => {
            ExecutorKind::Relay(relay_executor(registry, environment_id.clone(), network))
        }
        RemoteTransport::Direct => {
            ExecutorKind::Direct(DirectExecutor::new(direct::DirectExecutorSettings {
                registry,
                base: registry_url.clone(),
                environment: environment_id.clone(),
                auth: direct_auth,
                dial_options: dial_options(network),
            }))
        }
    };
    let stdin = config
        .credentials
        .stdin_end(pipe, config.server.stdin_close);
    Ok(OpenedExecutor { kind, stdin })
}

/// Builds a relay executor with its own identity.
pub(super) fn relay_executor(
    registry: RegistryClient,
    environment: RegistryEnvironmentId,
    network: &OutboundNetwork,
) -> RemoteExecutor {
    RemoteExecutor::new(executor::ExecutorSettings {
        registry,
        environment,
        identity: Arc::new(NoiseIdentity::generate()),
        dial_options: dial_options(network),
    })
}

fn dial_options(network: &OutboundNetwork) -> DialOptions {
    DialOptions {
        trust: network.trust.clone(),
        proxy: network.proxy.clone(),
        headers: network.headers.clone(),
    }
}

/// Builds the client of a registry.
pub(super) async fn registry(
    url: &BaseUrl,
    environment: &RegistryEnvironmentId,
    credentials: &RemoteCredentials,
    network: &OutboundNetwork,
) -> anyhow::Result<(RegistryClient, Option<PipeEnd>)> {
    let http = network.http(url).await?;
    let (direct_auth, pipe) = direct_auth(credentials, environment, &http).await?;
    Ok((
        RegistryClient::new(url.clone(), direct_auth.credentials(), http)?,
        pipe,
    ))
}

/// Builds the credentials, contacting identity services if needed.
async fn direct_auth(
    credentials: &RemoteCredentials,
    environment: &RegistryEnvironmentId,
    http: &HttpClient,
) -> anyhow::Result<(DirectAuth, Option<PipeEnd>)> {
    let credentials: Arc<dyn Credentials> = match credentials {
        RemoteCredentials::Token(token) => Arc::new(FixedCredentials::registry_token(token)),
        RemoteCredentials::TokenFile(path) => Arc::new(TokenFile::open(path)?),
        RemoteCredentials::ApiKey(key) => Arc::new(FixedCredentials::api_key(key)),
        RemoteCredentials::AccessToken(token, vendor) => {
            Arc::new(FixedCredentials::access_token(token.expose(), &vendor.issuer, http).await?)
        }
        RemoteCredentials::SignIn(path) => {
            let failure = || format!("cannot use the sign-in of `{}`", path.display());
            Arc::new(SignIn::open(path.clone()).await.with_context(failure)?)
        }
        RemoteCredentials::AgentIdentity(token, vendor) => {
            let settings = AgentIdentitySettings {
                token: token.clone(),
                keys: vendor.keys.clone(),
                tasks: vendor.tasks.clone(),
            };
            Arc::new(AgentIdentity::establish(&settings, http).await?)
        }
        RemoteCredentials::Stdin => {
            let stdin = tokio::io::stdin();
            let (pipe, end) = CredentialPipe::open(stdin, environment.clone()).await?;
            return Ok((DirectAuth::Token(Arc::new(pipe)), Some(end)));
        }
        RemoteCredentials::RegistrationBearerStdin => {
            Arc::new(FixedCredentials::read_bearer(tokio::io::stdin()).await?)
        }
        RemoteCredentials::ChatGptStdin(account) => {
            ensure_piped(std::io::stdin())?;
            let stdin = tokio::io::stdin();
            Arc::new(FixedCredentials::read_chatgpt_token(stdin, account.as_deref()).await?)
        }
        RemoteCredentials::Aws(settings) => {
            let signer = Arc::new(signer(settings).await?);
            return Ok((DirectAuth::Signature(signer), None));
        }
    };
    Ok((DirectAuth::Token(credentials), None))
}

async fn signer(settings: &AwsSettings) -> anyhow::Result<SigV4Signer> {
    let keys = settings.chain.clone();
    // Resolved now, so that an error is reported at start.
    keys.keys().await?;
    Ok(SigV4Signer::new(keys, settings.service.clone()).await?)
}

/// Treats a closed token pipe as a regular exit: the parent ended this program.
pub(super) fn ignore_closed_pipe(error: anyhow::Error) -> anyhow::Result<()> {
    match error.downcast_ref() {
        Some(PipeError::Closed) => Ok(()),
        Some(_) | None => Err(error),
    }
}

/// What the end of stdin means after the credentials were read.
pub(super) enum StdinEnd {
    /// Credentials are still read from it; their reader sees the end.
    Credentials(PipeEnd),
    /// It stops the executor.
    Watched,
    /// Ignored, or handled elsewhere.
    Ignored,
}

impl StdinEnd {
    /// Waits until stdin stops the executor, if it does.
    pub(super) async fn ended(self) -> anyhow::Result<()> {
        match self {
            Self::Credentials(end) => Ok(end.await?),
            Self::Watched => {
                shutdown_signal::stdin_closed().await;
                Ok(())
            }
            Self::Ignored => std::future::pending().await,
        }
    }
}

/// Rejects a stdin that is not a pipe or a socket: a token in a file would stay there.
fn ensure_piped(stdin: impl AsFd) -> anyhow::Result<()> {
    let kind = FileType::from_raw_mode(fstat(stdin)?.st_mode);
    ensure!(
        matches!(kind, FileType::Fifo | FileType::Socket),
        "ChatGPT token stdin must be a pipe or socket"
    );
    Ok(())
}

/// What to forward, and where.
#[derive(Debug)]
pub struct ForwardConfig {
    pub(super) destination: ForwardDestination,
    pub(super) registry_url: BaseUrl,
    pub(super) environment_id: RegistryEnvironmentId,
    pub(super) credentials: RemoteCredentials,
    pub(super) network: OutboundNetwork,
    pub(super) stdin_close: StdinClose,
}

/// Forwards until SIGTERM or SIGINT, or until the end of stdin like
/// [`run_remote_environment`]. Then cuts all connections.
///
/// # Errors
/// When the registry rejects the environment, at first or later, or there are no credentials.
pub async fn run_forward(config: ForwardConfig) -> anyhow::Result<()> {
    let ForwardConfig {
        destination,
        registry_url,
        environment_id,
        credentials,
        network,
        stdin_close,
    } = config;
    let mut stop = ShutdownSignal::new(credentials.remaining_stdin(stdin_close))?;
    let forwarding = async {
        let opened = registry(&registry_url, &environment_id, &credentials, &network).await;
        let (registry, stdin) = match opened {
            Ok((registry, pipe)) => (registry, credentials.stdin_end(pipe, stdin_close)),
            Err(error) => return ignore_closed_pipe(error),
        };
        let executor = relay_executor(registry, environment_id, &network);
        let forwarder = Forwarder::new(executor, destination, network.trust.clone());
        tokio::select! {
            ended = stdin.ended() => ended,
            failed = forwarder.run(std::future::pending()) => Ok(failed?),
        }
    };
    tokio::select! {
        outcome = forwarding => outcome,
        () = stop.recv() => Ok(()),
    }
}
