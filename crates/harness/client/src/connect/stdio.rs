//! Servers that are started as a program for one client.

use std::{
    collections::BTreeMap, ffi::OsString, fmt, future::ready, path::PathBuf, sync::Arc,
    time::Duration,
};

use exec_transport::{
    connect::{ConnectError, ServerProgram},
    link::Link,
    trace::TraceSource,
};
use futures_util::future::{BoxFuture, FutureExt};

use super::{ServerConnector, SessionContinuity};
use crate::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    error::ExecServerError,
};

/// How to start a server that speaks on stdin and stdout, for example through `ssh`. `Debug` hides
/// the values of its environment.
#[derive(Clone)]
pub struct StdioExecServerConnectArgs {
    /// The program: a path, or a name that is looked up in `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables that are added to those of this process, or override them.
    pub env: BTreeMap<OsString, OsString>,
    /// Working directory. Absent: that of this process.
    pub cwd: Option<PathBuf>,
    /// Client name for the server's logs.
    pub client_name: String,
    /// Timeout of the response to `initialize`. Default: ten seconds.
    pub initialize_timeout: Duration,
    /// Trace context of requests. Absent: requests carry none.
    pub trace: Option<TraceSource>,
}

impl StdioExecServerConnectArgs {
    /// Starts `program` with these arguments, and connects under this client name.
    pub fn new<A: Into<OsString>>(
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = A>,
        client_name: impl Into<String>,
    ) -> Self {
        let options = ExecServerClientConnectOptions::default();
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            cwd: None,
            client_name: client_name.into(),
            initialize_timeout: options.initialize_timeout,
            trace: None,
        }
    }

    /// Creates a connector. Starts nothing yet.
    pub fn connector(&self) -> StdioConnector {
        StdioConnector {
            program: ServerProgram {
                program: self.program.clone(),
                args: self.args.clone(),
                env: self.env.clone(),
                cwd: self.cwd.clone(),
            },
        }
    }

    /// Returns the options of the client.
    pub fn options(&self) -> ExecServerClientConnectOptions {
        ExecServerClientConnectOptions {
            client_name: self.client_name.clone(),
            initialize_timeout: self.initialize_timeout,
            trace: self.trace.clone(),
            ..ExecServerClientConnectOptions::default()
        }
    }
}

impl fmt::Debug for StdioExecServerConnectArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdioExecServerConnectArgs")
            .field("program", &self.connector().program)
            .field("client_name", &self.client_name)
            .field("initialize_timeout", &self.initialize_timeout)
            .field("trace", &self.trace)
            .finish()
    }
}

/// Starts a server program. Its sessions end with it.
#[derive(Clone, Debug)]
pub struct StdioConnector {
    program: ServerProgram,
}

impl ServerConnector for StdioConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        ready(()).map(|()| self.program.start()).boxed()
    }

    fn continuity(&self) -> SessionContinuity {
        SessionContinuity::Ended
    }
}

impl ExecServerClient {
    /// Starts a server program and connects to it. It ends with the client, and so does everything
    /// that it runs. Dropping the future leaves nothing running.
    pub async fn connect_stdio(args: StdioExecServerConnectArgs) -> Result<Self, ExecServerError> {
        Self::connect_with(Arc::new(args.connector()), args.options()).await
    }
}
