//! Starting processes.

use std::{fmt, io, sync::Arc};

use exec_wire::{
    environment::EnvironmentInfo, error::RpcError, path_uri::NativePathError, process::SandboxType,
};
use futures_util::future::BoxFuture;

use crate::{command::Command, disconnect::Disconnect, process::ExecProcess};

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
