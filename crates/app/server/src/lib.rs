//! exec-server: the open execution plane for coding agents.
//!
//! The product crate: the binary's command line and configuration, and the names that embedders
//! look for. Everything that does the work is in the crates below.
//!
//! # An environment
//!
//! A harness holds an [`Environment`]: where commands run, files are, requests start. Behind it is
//! this machine ([`local_environment`]) or a server ([`ExecServerClient::environment`]), and nothing
//! that uses it can tell.
//!
//! ```
//! use exec_server::{
//!     Command, Communicate, Environment, ExecServerRuntimePaths, PathUri, ProcessId,
//!     local_environment,
//! };
//!
//! async fn greeting(environment: &Environment) -> anyhow::Result<Vec<u8>> {
//!     let argv = ["echo", "hello"].map(str::to_owned).to_vec();
//!     let command = Command::new(ProcessId::new("greeting")?, argv, PathUri::parse("file:///")?);
//!     let started = environment.backend.start(command).await?;
//!     let said = started
//!         .process
//!         .communicate(Default::default(), Communicate::default())
//!         .await?;
//!     Ok(said.stdout.data)
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
//! # Several of them
//!
//! [`EnvironmentManager`] keeps environments under stable ids. [`environments::EnvironmentSelection`] reads
//! which there are from our `environments.toml`, the settings of Codex, and variables.
//!
//! ```no_run
//! use exec_server::{ExecServerRuntimePaths, environments::Selection};
//!
//! # async fn example() -> anyhow::Result<()> {
//! let manager = Selection::load()?.into_manager(&ExecServerRuntimePaths::default())?;
//! if let Some(id) = manager.default() {
//!     let environment = manager.environment(&id).await?;
//!     println!("{:?}", environment.backend.info().await?.cwd);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # A server in one's own program
//!
//! ```no_run
//! use exec_server::{DEFAULT_LISTEN_URL, ExecServerRuntimePaths, run_main_with_listen_url};
//!
//! # async fn example() -> anyhow::Result<()> {
//! run_main_with_listen_url(DEFAULT_LISTEN_URL, ExecServerRuntimePaths::default()).await
//! # }
//! ```
//!
//! Behind a NAT nothing can listen. [`run_remote_environment`] registers this machine with a registry,
//! such as a hub ([`hub`]), through which harnesses reach it, end to end encrypted;
//! [`ExecServerClient::connect_relay`] is their side.
//!
//! Settings other than the URL are read by [`config::ServerConfig::from_flags`], for [`run_main`].
//! More is in the `examples` directory of this crate.
//!
//! # Names
//!
//! The names that one looks for are here. Behind them are whole families: [`protocol`] is what
//! travels; [`process`], [`manager`], [`roots`], [`capabilities`] and [`thread`] have every type of
//! their subject.

pub mod background;
pub mod cli;
pub mod config;
pub mod hub;
pub mod observe;
pub mod remote;
mod run;
mod server_runtime;

use exec_cli::{local_machine, shutdown_signal};

pub use exec_cli::{command, doctor, environments};
pub use exec_client::{
    backend::RemoteBackend,
    catalog::RemoteCatalog,
    client::ExecServerClient,
    connect::{
        RelayExecServerConnectArgs, RemoteExecServerConnectArgs, StdioExecServerConnectArgs,
    },
    connection::ConnectionState,
    error::{ConnectError, ExecServerError, Fault},
    filesystem::RemoteFileSystem,
    http::RemoteHttpClient,
    options::ExecServerClientConnectOptions,
    process::RemoteProcess,
    trace::TraceSource,
};
pub use exec_core::log::{
    Exit, Follow, From as FollowFrom, HeadTail, OutputChunk, Pace, Page, Snapshot,
};
pub use exec_env::{
    backend::{ExecBackend, StartError, StartedProcess},
    catalog::{ExecutorCatalog, NoCatalog},
    command::{Command, Io, Stdin},
    disconnect::Disconnect,
    environment::Environment,
    filesystem::{
        Changes, ExecutorFileSystem, FileBlock, FileError, FileFuture, FileStream, MissingPaths,
        MissingWatch, Open, OpenFile, WatchDepth, WatchPath, Watcher,
    },
    http::{HttpBody, HttpClient, HttpError, HttpFuture, HttpRequest, HttpResponse, NoHttpClient},
    network::{Network, NetworkWatcher},
    process::{
        self, Collect, Collected, Communicate, CommunicateError, Communicated, EventStream,
        ExecProcess, ExecProcessEvent, Hold, ProcessError, ProcessTable, Read, Status,
    },
};
pub use exec_environments::{
    capabilities::{self, AvailableCapabilities, CapabilityCache},
    manager::{
        self, EnvironmentError, EnvironmentId, EnvironmentManager, EnvironmentSnapshot,
        EnvironmentSource, EnvironmentState, OpenError, Start,
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
pub use exec_transport::{
    connect::{Address, AddressError, BearerToken, HeaderError, Headers, TokenError},
    listen::{DEFAULT_LISTEN_URL, ListenUrlParseError as ExecServerListenUrlParseError},
    tls::Trust,
};
pub use exec_wire::{
    id::{OutputSeq, ProcessId, SessionId, WriteId},
    initialize::{InitializeParams, InitializeResponse},
    message::Trace,
    path_uri::PathUri,
    process::{ProcessSignal, ProcessSummary, TerminalSize, TerminateMode, WaitUntil, WriteStatus},
};

pub use self::{
    local_machine::{ExecServerRuntimePaths, local_environment, run_if_helper},
    remote::{RemoteEnvironmentConfig, run_remote_environment},
    run::{run_main, run_main_with_listen_url},
    shutdown_signal::StdinClose,
};

/// What travels: the request and result of every method, one module for each family.
///
/// A request type *is* its method: [`ExecServerClient::call`](crate::ExecServerClient::call) takes
/// one and gives its result.
///
/// ```
/// use exec_server::protocol::{method::Method, process::ReadProcess};
///
/// assert_eq!(ReadProcess::NAME.as_str(), "process/read");
/// ```
pub mod protocol {
    pub use exec_wire::{
        config, discovery, environment, error, fs, http, id, initialize, limits, method, network,
        path_uri, process, sandbox,
    };
}
