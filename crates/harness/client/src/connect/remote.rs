//! Servers that listen for websockets, on a network or on a unix socket.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use exec_transport::{
    connect::{self, Address, BearerToken, CONNECT_TIMEOUT, Headers, ListenerTrust, WebSocket},
    link::Link,
    tls::Trust,
    trace::TraceSource,
};
use exec_wire::id::SessionId;
use futures_util::future::{BoxFuture, FutureExt};

use super::{Connector, Continuity};
use crate::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    error::{ConnectError, ExecServerError},
};

/// How to connect to a server that listens. `Debug` hides what may be secret.
#[derive(Clone)]
pub struct RemoteExecServerConnectArgs {
    /// Where it listens: `ws://HOST:PORT`, `wss://HOST:PORT` or `unix:///path`.
    pub url: String,
    /// Sent with the request for a websocket, beside those that the handshake needs.
    pub headers: Headers,
    /// Sent as `Authorization: Bearer …`; needs `wss://`, or a server on this machine.
    pub bearer_token: Option<BearerToken>,
    /// Whose certificates are accepted on `wss://`; those of this host's roots by default.
    pub trust: Trust,
    /// Who connects, for the server's logs.
    pub client_name: String,
    /// How long a link may take; ten seconds by default.
    pub connect_timeout: Duration,
    /// How long the server may take to answer `initialize`; ten seconds by default.
    pub initialize_timeout: Duration,
    /// A detached session to take up again.
    pub resume_session_id: Option<SessionId>,
    /// What requests belong to. Absent: they carry no trace.
    pub trace: Option<TraceSource>,
}

impl RemoteExecServerConnectArgs {
    /// Connects to `url` without credentials, under this name.
    pub fn new(url: impl Into<String>, client_name: impl Into<String>) -> Self {
        let options = ExecServerClientConnectOptions::default();
        Self {
            url: url.into(),
            headers: Headers::default(),
            bearer_token: None,
            trust: Trust::default(),
            client_name: client_name.into(),
            connect_timeout: CONNECT_TIMEOUT,
            initialize_timeout: options.initialize_timeout,
            resume_session_id: None,
            trace: None,
        }
    }

    /// Makes what opens links to the server. Nothing is opened yet.
    ///
    /// # Errors
    /// When there can be none: the URL is malformed, or others could read the token on its way.
    pub fn connector(&self) -> Result<RemoteConnector, ConnectError> {
        let address: Address = self.url.parse().map_err(connect::ConnectError::from)?;
        let server = WebSocket {
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

    /// Returns how the client introduces itself.
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
            .field("url", &self.url.parse::<Address>())
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

/// Opens websockets to a server that listens. It keeps sessions for a while.
#[derive(Clone, Debug)]
pub struct RemoteConnector {
    server: WebSocket,
}

impl RemoteConnector {
    /// Connects to a unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self {
            server: WebSocket::new(Address::Unix(path.into())),
        }
    }

    /// Connects to a unix socket, for every link only if a process of this account listens that is
    /// under no more restrictions than this one.
    pub fn own_unix(path: impl Into<PathBuf>) -> Self {
        Self {
            server: WebSocket {
                listener: ListenerTrust::OwnAccount,
                ..WebSocket::new(Address::Unix(path.into()))
            },
        }
    }
}

impl Connector for RemoteConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Link, connect::ConnectError>> {
        self.server.open().boxed()
    }

    fn continuity(&self) -> Continuity {
        Continuity::Resumed
    }
}

impl ExecServerClient {
    /// Connects to a server that listens for websockets, and again whenever the connection breaks.
    /// Dropping the future leaves nothing open.
    pub async fn connect_websocket(
        args: RemoteExecServerConnectArgs,
    ) -> Result<Self, ExecServerError> {
        Self::connect_with(Arc::new(args.connector()?), args.options()).await
    }

    /// Connects to a server that listens on a unix socket, and again whenever the connection breaks.
    /// Dropping the future leaves nothing open.
    pub async fn connect_unix(
        path: impl Into<PathBuf>,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        Self::connect_with(Arc::new(RemoteConnector::unix(path)), options).await
    }
}
