//! Servers that are programs, started for one client.

use std::{
    collections::BTreeMap, ffi::OsString, fmt, future::ready, path::PathBuf, sync::Arc,
    time::Duration,
};

use exec_transport::{
    connect::{ConnectError, Program},
    link::Link,
    trace::TraceSource,
};
use futures_util::future::{BoxFuture, FutureExt};

use super::{Connector, Continuity};
use crate::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    error::ExecServerError,
};

/// How to start a server that speaks on its standard input and output, such as `ssh` to a host that
/// has one. `Debug` hides the values of its environment.
#[derive(Clone)]
pub struct StdioExecServerConnectArgs {
    /// The program: a path, or a name that is looked for in `PATH`.
    pub program: OsString,
    /// What it is given.
    pub args: Vec<OsString>,
    /// Variables that it has beside those of this process, or instead of them.
    pub env: BTreeMap<OsString, OsString>,
    /// Where it works; where this process does, if absent.
    pub cwd: Option<PathBuf>,
    /// Who connects, for the server's logs.
    pub client_name: String,
    /// How long the server may take to answer `initialize`; ten seconds by default.
    pub initialize_timeout: Duration,
    /// What requests belong to. Absent: they carry no trace.
    pub trace: Option<TraceSource>,
}

impl StdioExecServerConnectArgs {
    /// Starts `program` with some arguments, and connects to it under this name.
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

    /// Makes what starts the program. It does not run yet.
    pub fn connector(&self) -> StdioConnector {
        StdioConnector {
            program: Program {
                program: self.program.clone(),
                args: self.args.clone(),
                env: self.env.clone(),
                cwd: self.cwd.clone(),
            },
        }
    }

    /// Returns how the client introduces itself.
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

/// Starts a server. Its sessions end with it.
#[derive(Clone, Debug)]
pub struct StdioConnector {
    program: Program,
}

impl Connector for StdioConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        ready(()).map(|()| self.program.start()).boxed()
    }

    fn continuity(&self) -> Continuity {
        Continuity::Ended
    }
}

impl ExecServerClient {
    /// Starts a server and connects to it. It ends with the client, and so does everything that it
    /// runs. Dropping the future leaves nothing running.
    pub async fn connect_stdio(args: StdioExecServerConnectArgs) -> Result<Self, ExecServerError> {
        Self::connect_with(Arc::new(args.connector()), args.options()).await
    }
}
