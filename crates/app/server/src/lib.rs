//! exec-server: the open execution plane for coding agents.
//!
//! The facade: command line and configuration of the binary, and re-exports for embedders. The
//! implementation is in the crates below.
//!
//! # An environment
//!
//! A harness uses an [`Environment`] to run commands, access files and send HTTP requests. It is
//! either this machine ([`local_environment`]) or a server ([`ExecServerClient::environment`]),
//! with the same interface.
//!
//! ```
//! use exec_server::{
//!     Command, CommunicateOptions, Environment, ExecServerRuntimePaths, PathUri, ProcessId,
//!     local_environment,
//! };
//!
//! async fn greeting(environment: &Environment) -> anyhow::Result<Vec<u8>> {
//!     let argv = ["echo", "hello"].map(str::to_owned).to_vec();
//!     let command = Command::new(ProcessId::new("greeting")?, argv, PathUri::parse("file:///")?);
//!     let started = environment.backend.start(command).await?;
//!     let output = started
//!         .process
//!         .communicate(Default::default(), CommunicateOptions::default())
//!         .await?;
//!     Ok(output.stdout.data)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> anyhow::Result<()> {
//! let here = local_environment(&ExecServerRuntimePaths::default())?;
//! assert_eq!(greeting(&here).await?, b"hello\n");
//! # Ok(())
//! # }
//! ```
//!
//! # Several environments
//!
//! [`EnvironmentManager`] keeps environments under stable ids. A selection
//! ([`environments::EnvironmentSelection`]) reads them from our `environments.toml`, the settings
//! of Codex, and variables.
//!
//! ```no_run
//! use exec_server::{ExecServerRuntimePaths, environments::EnvironmentSelection};
//!
//! # async fn example() -> anyhow::Result<()> {
//! let selection = EnvironmentSelection::load()?;
//! let manager = selection.into_manager(&ExecServerRuntimePaths::default())?;
//! if let Some(id) = manager.default() {
//!     let environment = manager.environment(&id).await?;
//!     println!("{:?}", environment.backend.info().await?.cwd);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # An embedded server
//!
//! ```no_run
//! use exec_server::{DEFAULT_LISTEN_URL, ExecServerRuntimePaths, run_main_with_listen_url};
//!
//! # async fn example() -> anyhow::Result<()> {
//! run_main_with_listen_url(DEFAULT_LISTEN_URL, ExecServerRuntimePaths::default()).await
//! # }
//! ```
//!
//! Behind a NAT, [`run_remote_environment`] registers this machine with a registry, such as a hub
//! ([`hub`]). Harnesses connect through its relay with [`ExecServerClient::connect_relay`],
//! end-to-end encrypted.
//!
//! [`run_main`] takes further settings in a [`config::ServerConfig`]. The `examples` directory of
//! this crate has more.
//!
//! # Features
//!
//! The features are additive, and all on by default, as the program needs them. An embedder sets
//! `default-features = false` and adds what it uses; the client, the local environment and the
//! server need no feature.
//!
//! - `remote`: [`environments`], [`ExecServerClient::connect_relay`] and [`remote`]
//! - `executor`: the server as a program, with flags, variables and a configuration file ([`cli`]);
//!   with `remote`, also as an executor behind a registry
//! - `cli`: the commands for people ([`command`], [`doctor`]), and `mcp` for `exec-server mcp`; it
//!   implies `remote` and `executor`
//! - `hub`: the registry and relay ([`hub`]), and `nats` for hubs that share a NATS broker
//! - `otel`: spans for an OpenTelemetry collector
//!
//! # Names
//!
//! The most common names are re-exported here. [`protocol`] has the protocol types; [`process`],
//! [`manager`], [`roots`], [`capabilities`] and [`thread`] have every type of their subject.

#[cfg(feature = "executor")]
pub mod bridge;
#[cfg(feature = "executor")]
pub mod cli;
pub mod config;
#[cfg(feature = "hub")]
pub mod hub;
#[cfg(feature = "cli")]
pub mod join;
#[cfg(feature = "remote")]
pub mod remote;
mod server_runtime;
mod service_manager;
pub mod telemetry;
mod upgrade;

use exec_settings::{local_machine, shutdown_signal};

#[cfg(feature = "cli")]
pub use exec_cli::{command, doctor};
#[cfg(feature = "remote")]
pub use exec_client::connect::RelayExecServerConnectArgs;
pub use exec_client::{
    backend::RemoteBackend,
    catalog::RemoteCatalog,
    client::{ConnectionState, ExecServerClient, ExecServerClientConnectOptions},
    connect::{RemoteExecServerConnectArgs, StdioExecServerConnectArgs},
    error::{ConnectError, ExecServerError, FaultParty},
    filesystem::RemoteFileSystem,
    http::RemoteHttpClient,
    process::RemoteProcess,
};
pub use exec_core::output_log::{
    BackpressureMode, ExitInfo, FollowOptions, FollowStart as FollowFrom, HeadTail, LogPage,
    OutputChunk, OutputSnapshot,
};
pub use exec_env::{
    environment::{
        Command, CommandNetwork, DisconnectReason, Environment, ExecBackend, ExecutorCatalog,
        NetworkPolicyHook, NoCatalog, ProcessIo, StartError, StartedProcess, StdinMode,
    },
    filesystem::{
        ChangeBatch, ExecutorFileSystem, FileBlock, FileError, FileFuture, FileStream,
        MissingPathsRequest, MissingPathsWatch, OpenFile, OpenFileRequest, PathWatcher, WatchDepth,
        WatchPathRequest,
    },
    http::{HttpBody, HttpClient, HttpError, HttpFuture, HttpRequest, HttpResponse, NoHttpClient},
    process::{
        self, CollectOptions, CollectedOutput, CommunicateError, CommunicateOptions,
        CommunicateOutput, EventStream, ExecProcess, ExecProcessEvent, OutputHold,
        OutputReadRequest, ProcessError, ProcessStatus,
    },
};
pub use exec_environments::{
    capabilities::{self, AvailableCapabilities, CapabilityCache},
    manager::{
        self, EnvironmentError, EnvironmentId, EnvironmentManager, EnvironmentOpenError,
        EnvironmentSnapshot, EnvironmentSource, EnvironmentState, StartMode,
    },
    roots::{self, SelectedCapabilityRoot, SelectedRoots, StepRoots},
    thread::{self, SessionMeta, ThreadId},
};
pub use exec_local::{
    backend::{LocalBackend, LocalConfig},
    catalog::{CatalogConfig, LocalCatalog},
    filesystem::LocalFileSystem,
    http_client::LocalHttpClient,
};
pub use exec_process::LocalProcess;
#[cfg(feature = "remote")]
pub use exec_settings::environments;
pub use exec_transport::{
    connect::{
        BearerToken, InvalidBearerToken, RequestHeaderError, RequestHeaders, ServerAddress,
        ServerAddressError,
    },
    listen_url::{DEFAULT_LISTEN_URL, ListenUrlParseError as ExecServerListenUrlParseError},
    tls::TrustStore,
    trace::TraceSource,
};
pub use exec_wire::{
    id::{OutputSeq, ProcessId, SessionId, WriteId},
    initialize::{InitializeParams, InitializeResponse},
    message::TraceContext,
    path_uri::PathUri,
    process::{ProcessSignal, ProcessSummary, TerminalSize, TerminateMode, WaitUntil, WriteStatus},
};

#[cfg(feature = "remote")]
pub use self::remote::{RemoteEnvironmentConfig, run_remote_environment};
pub use self::{
    local_machine::{ExecServerRuntimePaths, local_environment, run_if_helper},
    server_runtime::{run_main, run_main_with_listen_url},
    shutdown_signal::StdinClose,
};

/// Protocol types: the request and result of every method, one module per family.
///
/// A request type *is* its method: [`ExecServerClient::call`](crate::ExecServerClient::call) takes
/// one and returns its result.
///
/// ```
/// use exec_server::protocol::{method::Method, process::ReadProcess};
///
/// assert_eq!(ReadProcess::NAME.as_str(), "process/read");
/// ```
pub mod protocol {
    pub use exec_wire::{
        discovery, environment, error, fs, http, id, initialize, limits, method, network, path_uri,
        process, sandbox, server,
    };
}
