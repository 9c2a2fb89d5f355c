//! Connectors: how to reach a server, and whether its sessions survive a disconnect.
//!
//! Connect arguments are plain values. Each yields a [`ServerConnector`] that opens links for the
//! lifetime of the client, and the client's options. Here: servers in the same process, servers
//! that listen for websockets on a network or on a unix socket, and servers that are started as a
//! program for one client. Not here: executors behind a relay (`relay`), the links themselves
//! (`exec-transport`), and recovery (`driver`).

#[cfg(feature = "remote")]
mod relay;
#[cfg(test)]
mod tests;

#[cfg(feature = "remote")]
pub use self::relay::{RelayConnector, RelayExecServerConnectArgs};

use std::{
    collections::BTreeMap, ffi::OsString, fmt, future::ready, path::PathBuf, sync::Arc,
    time::Duration,
};

use exec_transport::{
    connect::{
        BearerToken, CONNECT_TIMEOUT, ConnectError, ListenerTrust, RequestHeaders, ServerAddress,
        ServerProgram, WebSocketConnector,
    },
    link::Link,
    tls::TrustStore,
    trace::TraceSource,
};
use exec_wire::id::SessionId;
use futures_util::future::{BoxFuture, FutureExt};

use crate::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    error::{self, ExecServerError},
};

/// Opens links to one server.
pub trait ServerConnector: fmt::Debug + Send + Sync {
    /// Opens a link. Dropping the future leaves none open.
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>>;

    /// Opens a link for resuming a session, to the same server that holds it. The default is
    /// [`ServerConnector::connect`], for servers that cannot be replaced.
    fn reconnect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        self.connect()
    }

    /// Opens a link for a new session after the previous one was lost, to any server that answers
    /// now. The default is [`ServerConnector::connect`], for servers with permanent refusals.
    fn renew(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        self.connect()
    }

    /// Returns whether a session survives its link and can be resumed over another one.
    fn continuity(&self) -> SessionContinuity;

    /// Returns the backoff before the next reconnect attempt, given the number of failed attempts
    /// since the link was last useful.
    fn backoff(&self, failures: u32) -> BackoffDelay {
        BackoffDelay::FromStart(if failures < FAST_ATTEMPTS {
            INITIAL_BACKOFF
        } else {
            MAX_BACKOFF
        })
    }
}

/// Backoff between the first reconnect attempts, as in the stock client.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// Number of attempts with that backoff: half a minute's worth.
const FAST_ATTEMPTS: u32 = 300;
/// Backoff between later attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// Backoff: when the next reconnect attempt starts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BackoffDelay {
    /// This long after the start of the previous attempt, or immediately if that took longer.
    FromStart(Duration),
    /// This long after the end of the previous attempt.
    FromEnd(Duration),
}

/// Whether a session survives the end of its link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SessionContinuity {
    /// The server keeps the session for a while.
    Resumed,
    /// The session ends with the link, as does the server that was started for it.
    Ended,
}

/// Opens links with a closure, for example to a server in the same process.
pub struct MemoryConnector<F> {
    open: F,
    continuity: SessionContinuity,
}

impl<F> MemoryConnector<F>
where
    F: Fn() -> Link + Send + Sync + 'static,
{
    /// Opens links with `open`, which may return one end of an in-memory pair.
    pub fn new(open: F, continuity: SessionContinuity) -> Self {
        Self { open, continuity }
    }
}

impl<F> fmt::Debug for MemoryConnector<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryConnector")
            .field("continuity", &self.continuity)
            .finish_non_exhaustive()
    }
}

impl<F> ServerConnector for MemoryConnector<F>
where
    F: Fn() -> Link + Send + Sync + 'static,
{
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        ready(()).map(|()| Ok((self.open)())).boxed()
    }

    fn continuity(&self) -> SessionContinuity {
        self.continuity
    }
}

impl ExecServerClient {
    /// Connects to a server in the same process. Calls `open` for each link; `continuity` says
    /// whether the server keeps a session without a link.
    pub async fn connect_memory(
        open: impl Fn() -> Link + Send + Sync + 'static,
        continuity: SessionContinuity,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        Self::connect_with(Arc::new(MemoryConnector::new(open, continuity)), options).await
    }
}

/// How to connect to a listening server. `Debug` hides secrets.
#[derive(Clone)]
pub struct RemoteExecServerConnectArgs {
    /// Address: `ws://HOST:PORT`, `wss://HOST:PORT` or `unix:///path`.
    pub url: String,
    /// Additional headers of the websocket upgrade request.
    pub headers: RequestHeaders,
    /// Sent as `Authorization: Bearer …`. Requires `wss://` or a server on this machine.
    pub bearer_token: Option<BearerToken>,
    /// Trusted certificate authorities for `wss://`. Default: the roots of this host.
    pub trust: TrustStore,
    /// Client name for the server's logs.
    pub client_name: String,
    /// Timeout of opening a link. Default: ten seconds.
    pub connect_timeout: Duration,
    /// Timeout of the response to `initialize`. Default: ten seconds.
    pub initialize_timeout: Duration,
    /// A detached session to resume.
    pub resume_session_id: Option<SessionId>,
    /// Trace context of requests. Absent: requests carry none.
    pub trace: Option<TraceSource>,
}

impl RemoteExecServerConnectArgs {
    /// Connects to `url` without credentials, under this client name.
    pub fn new(url: impl Into<String>, client_name: impl Into<String>) -> Self {
        let options = ExecServerClientConnectOptions::default();
        Self {
            url: url.into(),
            headers: RequestHeaders::default(),
            bearer_token: None,
            trust: TrustStore::default(),
            client_name: client_name.into(),
            connect_timeout: CONNECT_TIMEOUT,
            initialize_timeout: options.initialize_timeout,
            resume_session_id: None,
            trace: None,
        }
    }

    /// Creates a connector. Opens nothing yet.
    ///
    /// # Errors
    /// If the URL is malformed, or would expose the token to the network.
    pub fn connector(&self) -> Result<RemoteConnector, error::ConnectError> {
        let address: ServerAddress = self.url.parse().map_err(ConnectError::from)?;
        let server = WebSocketConnector {
            address,
            headers: self.headers.clone(),
            bearer_token: self.bearer_token.clone(),
            trust: self.trust.clone(),
            listener: ListenerTrust::Any,
            connect_timeout: self.connect_timeout,
        };
        server.check()?;
        Ok(RemoteConnector { server })
    }

    /// Returns the options of the client.
    pub fn options(&self) -> ExecServerClientConnectOptions {
        ExecServerClientConnectOptions {
            client_name: self.client_name.clone(),
            initialize_timeout: self.initialize_timeout,
            resume_session_id: self.resume_session_id.clone(),
            trace: self.trace.clone(),
            ..ExecServerClientConnectOptions::default()
        }
    }
}

impl fmt::Debug for RemoteExecServerConnectArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteExecServerConnectArgs")
            .field("url", &self.url.parse::<ServerAddress>())
            .field("headers", &self.headers)
            .field("bearer_token", &self.bearer_token)
            .field("trust", &self.trust)
            .field("client_name", &self.client_name)
            .field("connect_timeout", &self.connect_timeout)
            .field("initialize_timeout", &self.initialize_timeout)
            .field("resume_session_id", &self.resume_session_id)
            .field("trace", &self.trace)
            .finish()
    }
}

/// Opens websockets to a listening server, which keeps sessions for a while.
#[derive(Clone, Debug)]
pub struct RemoteConnector {
    server: WebSocketConnector,
}

impl RemoteConnector {
    /// Connects to a unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self {
            server: WebSocketConnector::new(ServerAddress::Unix(path.into())),
        }
    }

    /// Connects to a unix socket. Checks for every link that the listener runs under the same
    /// account and is not more restricted than this process.
    pub fn own_unix(path: impl Into<PathBuf>) -> Self {
        Self {
            server: WebSocketConnector {
                listener: ListenerTrust::OwnAccount,
                ..WebSocketConnector::new(ServerAddress::Unix(path.into()))
            },
        }
    }
}

impl ServerConnector for RemoteConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        self.server.open().boxed()
    }

    fn continuity(&self) -> SessionContinuity {
        SessionContinuity::Resumed
    }
}

impl ExecServerClient {
    /// Connects to a server that listens for websockets, and reconnects when the connection breaks.
    /// Dropping the future leaves nothing open.
    pub async fn connect_websocket(
        args: RemoteExecServerConnectArgs,
    ) -> Result<Self, ExecServerError> {
        Self::connect_with(Arc::new(args.connector()?), args.options()).await
    }

    /// Connects to a server that listens on a unix socket, and reconnects when the connection
    /// breaks. Dropping the future leaves nothing open.
    pub async fn connect_unix(
        path: impl Into<PathBuf>,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        Self::connect_with(Arc::new(RemoteConnector::unix(path)), options).await
    }
}

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
