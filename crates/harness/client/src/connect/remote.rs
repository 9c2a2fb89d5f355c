//! Servers that listen for websockets, on a network or on a unix socket.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use exec_transport::{
    connect::{
        self, BearerToken, CONNECT_TIMEOUT, ListenerTrust, RequestHeaders, ServerAddress,
        WebSocketConnector,
    },
    link::Link,
    tls::TrustStore,
    trace::TraceSource,
};
use exec_wire::id::SessionId;
use futures_util::future::{BoxFuture, FutureExt};

use super::{ServerConnector, SessionContinuity};
use crate::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    error::{ConnectError, ExecServerError},
};

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
    pub fn connector(&self) -> Result<RemoteConnector, ConnectError> {
        let address: ServerAddress = self.url.parse().map_err(connect::ConnectError::from)?;
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
    fn connect(&self) -> BoxFuture<'_, Result<Link, connect::ConnectError>> {
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
