//! An environment: the place where commands run and files are, as a set of trait objects.
//!
//! Not here: file operations ([`filesystem`](crate::filesystem)), HTTP requests
//! ([`http`](crate::http)) and running processes ([`process`](crate::process)).

use std::{fmt, io, sync::Arc};

use exec_wire::{
    config::{EnvironmentConfig, ReadEnvironmentConfig},
    discovery::{
        DiscoverCapabilities, DiscoverRoots, DiscoveredCapabilities, DiscoveredRoot,
        DiscoveredRoots, DiscoveryRoot,
    },
    environment::EnvironmentInfo,
    error::RpcError,
    path_uri::NativePathError,
    process::SandboxType,
};
use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::{
    command::Command,
    filesystem::{ExecutorFileSystem, FileError, FileFuture},
    http::HttpClient,
    process::ExecProcess,
};

/// An environment, local or remote. Clones share it.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Starts processes.
    pub backend: Arc<dyn ExecBackend>,
    /// Works on files.
    pub files: Arc<dyn ExecutorFileSystem>,
    /// Makes HTTP requests.
    pub http: Arc<dyn HttpClient>,
    /// Knows what is configured and installed.
    pub catalog: Arc<dyn ExecutorCatalog>,
}

/// Starts processes. Callers cannot tell local from remote through it.
pub trait ExecBackend: fmt::Debug + Send + Sync {
    /// Starts `command`. Dropping the future leaves nothing running.
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>>;

    /// Describes the host that commands run on.
    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>>;
}

/// A process that runs, or has run.
#[derive(Clone, Debug)]
pub struct StartedProcess {
    /// The process. When the last clone is dropped, its tree is killed.
    pub process: Arc<dyn ExecProcess>,
    /// What encloses it, if that is known.
    pub sandbox_type: Option<SandboxType>,
}

/// Why a process did not start. In every case nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Caller: there is no program.
    #[error("argv must not be empty")]
    EmptyArgv,
    /// Caller: the program's name is empty.
    #[error("missing program: argv[0] must not be empty")]
    EmptyProgram,
    /// Caller: the directory is not a path of this host.
    #[error("cwd is not valid on this exec-server host")]
    Cwd(#[source] NativePathError),
    /// Caller: a member of the request asks for what cannot be.
    #[error("{field}: {reason}")]
    Refused {
        /// The member.
        field: &'static str,
        /// What was expected.
        reason: String,
    },
    /// Host: the operating system did not start it.
    #[error("{context}")]
    Spawn {
        /// Which step failed, and on what.
        context: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Caller: it was terminated before it ran.
    #[error("process was terminated while starting")]
    Cancelled,
    /// Peer: the remote end refused.
    #[error(transparent)]
    Remote(RpcError),
    /// Transport: the remote end is gone.
    #[error(transparent)]
    Disconnected(#[from] Disconnect),
}

/// Reads configuration, plugins and skills. It is made of files and fails as they do. Callers cannot
/// tell local from remote through it.
pub trait ExecutorCatalog: fmt::Debug + Send + Sync {
    /// Reads selected keys of the configuration.
    fn read_config(&self, read: ReadEnvironmentConfig) -> FileFuture<EnvironmentConfig>;

    /// Reads what lies below each root.
    fn discover_roots(&self, discover: DiscoverRoots) -> FileFuture<DiscoveredRoots>;

    /// Lists what is installed for the account.
    fn discover(&self, discover: DiscoverCapabilities) -> FileFuture<DiscoveredCapabilities>;
}

/// Knows nothing: for an environment that has no catalog.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCatalog;

impl ExecutorCatalog for NoCatalog {
    fn read_config(&self, _: ReadEnvironmentConfig) -> FileFuture<EnvironmentConfig> {
        let error = FileError::Refused("this environment has no configuration".to_owned());
        ready(Err(error)).boxed()
    }

    fn discover_roots(&self, discover: DiscoverRoots) -> FileFuture<DiscoveredRoots> {
        let nothing = |root: DiscoveryRoot| DiscoveredRoot {
            id: root.id,
            path: root.path,
            plugin: None,
            skills: Vec::new(),
            namespace_manifests: Vec::new(),
            warnings: Vec::new(),
            error: Some("this environment discovers no capabilities".to_owned()),
        };
        let roots = discover.roots.into_iter().map(nothing).collect();
        ready(Ok(DiscoveredRoots { roots })).boxed()
    }

    fn discover(&self, _: DiscoverCapabilities) -> FileFuture<DiscoveredCapabilities> {
        ready(Ok(DiscoveredCapabilities::default())).boxed()
    }
}

/// Why nothing can be done on a remote host any more. Whoever recovers connections has given up.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Disconnect {
    /// Transport: the connection is gone, and no other could be made in time.
    #[error("connection to the exec-server is gone: {0}")]
    Transport(String),
    /// Session: the server does not know it any more; what belonged to it has ended.
    #[error("session on the exec-server is lost: {0}")]
    Session(String),
    /// Peer: it broke a promise of the protocol, which the text names.
    #[error("exec-server broke the protocol: {0}")]
    Protocol(String),
}
