//! A connection to a server, and the typed calls over it.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_env::environment::Environment;
use exec_transport::{
    link::{DataEncoding, Link},
    trace::TraceSource,
};
use exec_wire::{
    environment::{EnvironmentInfo, EnvironmentStatus, ReadEnvironmentInfo, ReadEnvironmentStatus},
    id::{ProcessId, SessionId, WriteId},
    initialize::{InitializeResponse, ProtocolExtension},
    limits,
    message::RequestId,
    method::{Method, MethodName},
    outgoing_message::OutgoingMessage,
    process::{AttachProcess, AttachResult, StartProcess, StartResult, WriteProcess, WriteResult},
};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot, watch,
    },
    time::timeout,
};

use crate::{
    backend::RemoteBackend,
    catalog::RemoteCatalog,
    client_shared::{ClientShared, MAX_QUEUED_WRITE_BYTES, SessionState},
    connect::ServerConnector,
    driver::{
        AttachWaiter, Call, CallResult, ClientDriver, MAX_QUEUED_CALLS, RawResponse,
        RequestBuilder, ResponseSink, RetryPolicy, driver_stopped,
    },
    error::ExecServerError,
    events::ProcessEvents,
    filesystem::RemoteFileSystem,
    handshake::{OpenedSession, ServerKind, open_session, perform_handshake},
    http::RemoteHttpClient,
    network::RemoteNetwork,
};

/// Timeouts of `environment/info` and `environment/status`, as in the stock client.
const INFO_TIMEOUT: Duration = Duration::from_secs(30);
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// Reserved size of a message beside its data, for paths, URLs, headers and policies.
const MESSAGE_OVERHEAD_BYTES: usize = 1 << 20;

/// A connection to an exec-server. Clones share it. It closes when the last clone and the last
/// process and event stream that came from it are dropped.
#[derive(Clone, Debug)]
pub struct ExecServerClient {
    inner: Arc<ClientInner>,
}

#[derive(Debug)]
struct ClientInner {
    calls: mpsc::Sender<Call>,
    shared: Arc<ClientShared>,
    trace: Option<TraceSource>,
}

impl ExecServerClient {
    /// Performs the handshake over a link. The client cannot reconnect: when the link ends,
    /// everything fails immediately. Dropping the future closes the link.
    pub async fn connect(
        link: Link,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        let resumed = options.resume_session_id.clone();
        let opened = perform_handshake(link, &options, resumed).await?;
        Ok(Self::run(opened, None, options))
    }

    /// Opens a link and performs the handshake, and reconnects when the link ends. A reconnect is
    /// transparent if the server has kept the session. Dropping the future leaves nothing open.
    pub async fn connect_with(
        connector: Arc<dyn ServerConnector>,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        let resumed = options.resume_session_id.clone();
        let link = match resumed {
            Some(_) => connector.reconnect(),
            None => connector.connect(),
        };
        let opened = open_session(link, &options, resumed).await?;
        Ok(Self::run(opened, Some(connector), options))
    }

    fn run(
        opened: OpenedSession,
        connector: Option<Arc<dyn ServerConnector>>,
        options: ExecServerClientConnectOptions,
    ) -> Self {
        let (calls, queue) = mpsc::channel(MAX_QUEUED_CALLS);
        let shared = Arc::new(ClientShared::new(opened.session.clone()));
        let trace = options.trace.clone();
        let driver = ClientDriver::new(connector, options, queue, Arc::clone(&shared));
        tokio::spawn(driver.run(opened));
        Self {
            inner: Arc::new(ClientInner {
                calls,
                shared,
                trace,
            }),
        }
    }

    /// Returns the server's response to `initialize`. It changes when a new session starts.
    pub fn session(&self) -> Arc<InitializeResponse> {
        Arc::clone(&self.inner.shared.session_state.borrow().session)
    }

    /// Resolves when the session is lost. Reconnects do not count.
    pub async fn closed(&self) {
        let mut session_state = self.inner.shared.session_state.subscribe();
        let session = session_state.borrow().session.session_id.clone();
        let is_lost = |session_state: &SessionState| {
            session_state.lost.is_some() || session_state.session.session_id != session
        };
        // The sender lives as long as the client.
        drop(session_state.wait_for(is_lost).await);
    }

    /// Returns a future that resolves when the connection has ended. It does not keep the
    /// connection open: after the last handle is dropped, the driver flushes its messages, with a
    /// timeout of one second. A program that exits earlier may lose them.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut connection = self.connection();
        async move {
            // An error means that the driver has ended, too.
            drop(
                connection
                    .wait_for(|state| *state == ConnectionState::Lost)
                    .await,
            );
        }
    }

    /// Returns the connection state and its changes. Rapid changes may be merged; the last one is
    /// always seen.
    pub fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.inner.shared.connection.subscribe()
    }

    /// Abandons the session after this long without a connection. The server may end it earlier.
    /// Without this call, recovery lasts as long as the server keeps the session.
    pub fn set_reconnect_timeout(&self, limit: Duration) {
        self.inner.shared.set_reconnect_timeout(limit);
    }

    /// Makes the next reconnect attempt immediately instead of after its backoff. Does nothing
    /// while connected.
    pub fn retry_now(&self) {
        self.inner.shared.request_retry();
    }

    /// Presents the server as an environment.
    pub fn environment(&self) -> Environment {
        Environment {
            backend: Arc::new(RemoteBackend::new(self.clone())),
            files: Arc::new(RemoteFileSystem::new(self.clone())),
            http: Arc::new(RemoteHttpClient::new(self.clone())),
            catalog: Arc::new(RemoteCatalog::new(self.clone())),
            network: Arc::new(RemoteNetwork::new(self.clone())),
        }
    }

    /// Describes the host that commands run on, from the handshake or with a call.
    pub async fn info(&self) -> Result<EnvironmentInfo, ExecServerError> {
        match self.session().environment_info.clone() {
            Some(info) => Ok(info),
            None => self.call_within(ReadEnvironmentInfo, INFO_TIMEOUT).await,
        }
    }

    /// Checks that the server responds.
    pub async fn status(&self) -> Result<EnvironmentStatus, ExecServerError> {
        self.call_within(ReadEnvironmentStatus, STATUS_TIMEOUT)
            .await
    }

    async fn call_within<M>(&self, params: M, limit: Duration) -> Result<M::Result, ExecServerError>
    where
        M: Method + Send + 'static,
        M::Result: Send,
    {
        let method = M::NAME.as_str();
        let response = timeout(limit, self.call(params)).await;
        response.map_err(|_| ExecServerError::Timeout { method, limit })?
    }

    /// Calls a method. Calls are ordered by when this function is called, not by when the future is
    /// awaited. Dropping the future abandons the response, not the request.
    pub fn call<M>(&self, params: M) -> BoxFuture<'static, Result<M::Result, ExecServerError>>
    where
        M: Method + Send + 'static,
        M::Result: Send,
    {
        self.call_with_retry(params, None, RetryPolicy::of(M::NAME))
    }

    /// Starts a process and receives its events from the first one on.
    pub(crate) fn start(
        &self,
        params: StartProcess,
        events: Arc<ProcessEvents>,
    ) -> impl Future<Output = Result<StartResult, ExecServerError>> + Send + use<> {
        self.call_with_sink(params, |reply| ResponseSink::Start(reply, events))
            .map(|reply| decode::<StartProcess>(&reply?))
    }

    /// Attaches to a server-owned process and receives its events from the response on, or earlier.
    pub(crate) fn attach_process(
        &self,
        params: AttachProcess,
        events: Arc<ProcessEvents>,
    ) -> impl Future<Output = Result<AttachResult, ExecServerError>> + Send + use<> {
        let after = params.after_seq.unwrap_or_default();
        let sink = move |reply| ResponseSink::Attach(AttachWaiter::Attach(reply), events, after);
        self.call_with_sink(params, sink)
            .map(|reply| decode::<AttachProcess>(&reply?))
    }

    /// Writes to a process. The bytes travel raw if the server granted binary data.
    pub(crate) fn write(
        &self,
        process_id: ProcessId,
        write_id: WriteId,
        data: Bytes,
        target: Option<Arc<ProcessEvents>>,
    ) -> impl Future<Output = Result<WriteResult, ExecServerError>> + Send + use<> {
        let params = WriteProcess {
            process_id,
            chunk: None,
            write_id,
        };
        self.call_with_data(params, "chunk", data, target, ResponseSink::Call)
            .map(|reply| decode::<WriteProcess>(&reply?))
    }

    /// Calls a method; `sink` receives the response.
    pub(crate) fn call_with_sink<M, W>(
        &self,
        params: M,
        sink: W,
    ) -> impl Future<Output = CallResult> + Send + use<M, W>
    where
        M: Method + Send + 'static,
        W: FnOnce(oneshot::Sender<CallResult>) -> ResponseSink,
    {
        let method = M::NAME;
        let request = move |id: &RequestId| OutgoingMessage::request(id, method.as_str(), &params);
        let retry = RetryPolicy::of(method);
        self.send(method, Box::new(request), retry, None, sink)
    }

    /// Calls a method, optionally for a server-owned process.
    pub(crate) fn call_with_retry<M>(
        &self,
        params: M,
        target: Option<Arc<ProcessEvents>>,
        retry: RetryPolicy,
    ) -> BoxFuture<'static, Result<M::Result, ExecServerError>>
    where
        M: Method + Send + 'static,
        M::Result: Send,
    {
        let method = M::NAME;
        let request = move |id: &RequestId| OutgoingMessage::request(id, method.as_str(), &params);
        self.send(method, Box::new(request), retry, target, ResponseSink::Call)
            .map(|reply| decode::<M>(&reply?))
            .boxed()
    }

    /// Calls a method that carries bytes, if the send buffer has room for them.
    pub(crate) fn call_with_data<M, W>(
        &self,
        params: M,
        member: &'static str,
        data: Bytes,
        target: Option<Arc<ProcessEvents>>,
        sink: W,
    ) -> impl Future<Output = CallResult> + Send + use<M, W>
    where
        M: Method + Send + 'static,
        W: FnOnce(oneshot::Sender<CallResult>) -> ResponseSink,
    {
        let permit = self.inner.shared.reserve(data.len());
        let sent = permit
            .ok_or(ExecServerError::SendBufferFull(MAX_QUEUED_WRITE_BYTES))
            .map(|permit| {
                let method = M::NAME;
                let request = move |id: &RequestId| {
                    // Holds the send permit until the request is dropped.
                    let _permit = &permit;
                    let name = method.as_str();
                    OutgoingMessage::request(id, name, &params).with_data(member, data.clone())
                };
                let retry = RetryPolicy::of(method);
                self.send(method, Box::new(request), retry, target, sink)
            });
        async move { sent?.await }
    }

    pub(crate) fn shared(&self) -> &Arc<ClientShared> {
        &self.inner.shared
    }

    /// Returns whether the server supports our extensions. The stock server supports none: it knows
    /// only the signal `interrupt`, cannot close a command's stdin, and cannot replace a file
    /// atomically.
    pub fn has_extensions(&self) -> bool {
        self.server_kind() == ServerKind::Extended
    }

    /// Returns which request members the server understands.
    pub(crate) fn server_kind(&self) -> ServerKind {
        ServerKind::of(&self.session())
    }

    /// Fails if the server does not support an extension method.
    pub(crate) fn check(&self, method: MethodName) -> Result<(), ExecServerError> {
        let checked = self.server_kind().check_method(method);
        checked.map_err(ExecServerError::Remote)
    }

    /// Returns the maximum size of the data in one message to the server.
    pub(crate) fn max_data_bytes(&self) -> usize {
        let max_bytes = limits::MAX_MESSAGE_BYTES - MESSAGE_OVERHEAD_BYTES;
        match encoding(&self.session()) {
            DataEncoding::Binary => max_bytes,
            DataEncoding::Text => max_bytes / 4 * 3,
        }
    }

    fn send<W: FnOnce(oneshot::Sender<CallResult>) -> ResponseSink>(
        &self,
        method: MethodName,
        request: RequestBuilder,
        retry: RetryPolicy,
        target: Option<Arc<ProcessEvents>>,
        sink: W,
    ) -> impl Future<Output = CallResult> + Send + use<W> {
        let (reply, answer) = oneshot::channel();
        let trace = self.inner.trace.as_ref().and_then(TraceSource::current);
        let request = match trace {
            None => request,
            Some(trace) => Box::new(move |id: &RequestId| request(id).with_trace(&trace)),
        };
        let call = Call {
            method,
            request,
            retry,
            target,
            sink: sink(reply),
        };
        let (inner, waiting) = (Arc::clone(&self.inner), self.inner.shared.register_waiter());
        let sent = inner.calls.try_send(call).map_err(|error| match error {
            TrySendError::Full(_) => ExecServerError::TooManyCalls(MAX_QUEUED_CALLS),
            TrySendError::Closed(_) => inner.disconnect_error(),
        });
        async move {
            // A pending response keeps the connection open and reading.
            let _waiting = waiting;
            sent?;
            answer
                .await
                .unwrap_or_else(|_| Err(inner.disconnect_error()))
        }
    }
}

impl ClientInner {
    /// Returns why no response will arrive.
    fn disconnect_error(&self) -> ExecServerError {
        let lost = self.shared.session_state.borrow().lost.clone();
        lost.unwrap_or_else(driver_stopped).into()
    }
}

/// Decodes a result.
pub(crate) fn decode<M: Method>(response: &RawResponse) -> Result<M::Result, ExecServerError> {
    serde_json::from_slice(&response.result).map_err(|error| malformed::<M>(&error))
}

/// Reports a result that does not match the method's schema.
pub(crate) fn malformed<M: Method>(reason: &dyn fmt::Display) -> ExecServerError {
    ExecServerError::Malformed {
        method: M::NAME.as_str(),
        reason: reason.to_string(),
    }
}

/// Returns the encoding of data in a session.
pub(crate) fn encoding(session: &InitializeResponse) -> DataEncoding {
    if session.extensions.contains(&ProtocolExtension::BinaryData) {
        DataEncoding::Binary
    } else {
        DataEncoding::Text
    }
}

/// Timeout of `initialize`, as in the stock client.
const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(10);

/// Options of a connection.
#[derive(Clone, Debug)]
pub struct ExecServerClientConnectOptions {
    /// Client name for the server's logs.
    pub client_name: String,
    /// Timeout of the response to `initialize`.
    pub initialize_timeout: Duration,
    /// A detached session to resume.
    pub resume_session_id: Option<SessionId>,
    /// Extensions to request. The client works without those that are not granted.
    pub extensions: Vec<String>,
    /// Trace context of requests. Absent: requests carry none.
    pub trace: Option<TraceSource>,
}

impl Default for ExecServerClientConnectOptions {
    fn default() -> Self {
        let extensions = [
            "binaryData",
            "lifecycle",
            "acknowledge",
            "fileDetails",
            "tunnels",
        ];
        Self {
            client_name: env!("CARGO_PKG_NAME").to_owned(),
            initialize_timeout: INITIALIZE_TIMEOUT,
            resume_session_id: None,
            extensions: extensions.map(str::to_owned).to_vec(),
            trace: None,
        }
    }
}

/// Connection state of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionState {
    /// Connected, with a session.
    Connected,
    /// The connection broke, and the client is reconnecting. Calls wait.
    Reconnecting,
    /// The session is lost, with everything that belonged to it. The next call may open a new one.
    Lost,
}
