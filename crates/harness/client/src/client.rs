//! A connection to a server, and the typed calls over it.

mod server_processes;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_env::environment::Environment;
use exec_transport::{
    link::{Encoding, Link},
    trace::TraceSource,
};
use exec_wire::{
    environment::{EnvironmentInfo, EnvironmentStatus, ReadEnvironmentInfo, ReadEnvironmentStatus},
    id::{ProcessId, SessionId, WriteId},
    initialize::{Extension, InitializeResponse},
    message::RequestId,
    method::{Method, MethodName},
    outgoing::Outgoing,
    process::{AttachProcess, Attached, StartProcess, Started, WriteProcess, WriteResult},
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
    connect::Connector,
    driver::{
        AttachWaiter, Call, CallResult, ClientDriver, MAX_QUEUED_CALLS, RawResponse,
        RequestBuilder, ResponseSink, RetryPolicy, driver_stopped,
    },
    error::ExecServerError,
    events::ProcessEvents,
    filesystem::RemoteFileSystem,
    handshake::{OpenedSession, open_session, perform_handshake},
    http::RemoteHttpClient,
    server_kind::ServerKind,
};

/// How long the server may take to describe its host, and to say that it is there: as the stock client.
const INFO_TIMEOUT: Duration = Duration::from_secs(30);
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to an exec-server. Clones share it; it is closed when the last of them, and of the
/// processes and event streams that came from it, is dropped.
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
    /// Shakes hands over a link and takes it into use. There is no other: when it ends, everything
    /// fails at once. Dropping the future closes the link.
    pub async fn connect(
        link: Link,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        let resumed = options.resume_session_id.clone();
        let opened = perform_handshake(link, &options, resumed).await?;
        Ok(Self::run(opened, None, options))
    }

    /// Opens a link, shakes hands over it, and opens another when it ends: whoever uses the client
    /// does not notice, if the server keeps the session. Dropping the future leaves nothing open.
    pub async fn connect_with(
        connector: Arc<dyn Connector>,
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
        connector: Option<Arc<dyn Connector>>,
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

    /// Returns what the server answered to `initialize`. It differs after a new session has begun.
    pub fn session(&self) -> Arc<InitializeResponse> {
        Arc::clone(&self.inner.shared.session_state().borrow().session)
    }

    /// Resolves when the session is lost. Connections that are made again do not count.
    pub async fn closed(&self) {
        let mut session_state = self.inner.shared.session_state().subscribe();
        let session = session_state.borrow().session.session_id.clone();
        let gone = |session_state: &SessionState| {
            session_state.lost.is_some() || session_state.session.session_id != session
        };
        // It ends only with the client, which is here.
        drop(session_state.wait_for(gone).await);
    }

    /// Returns what resolves when there is no connection any more. It keeps none open: when everybody
    /// who needs it has let go, last words are said, for which a peer has a second. A program that ends
    /// before has left without them.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut connection = self.connection();
        async move {
            // An error says that the driver is gone, too.
            drop(
                connection
                    .wait_for(|state| *state == ConnectionState::Lost)
                    .await,
            );
        }
    }

    /// Returns whether there is a connection, and what becomes of it. Changes that follow each other
    /// fast are seen as one; the last is always seen.
    pub fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.inner.shared.connection().subscribe()
    }

    /// Gives up the session after this long without a connection. The server may end it earlier, and
    /// without this call it is resumed for as long as the server keeps it.
    pub fn set_reconnect_timeout(&self, limit: Duration) {
        self.inner.shared.set_reconnect_timeout(limit);
    }

    /// Makes the next attempt to reconnect at once instead of after its backoff. Does nothing while
    /// there is a connection.
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
        }
    }

    /// Describes the host that commands run on: as the server did in the handshake, or else when asked.
    pub async fn info(&self) -> Result<EnvironmentInfo, ExecServerError> {
        match self.session().environment_info.clone() {
            Some(info) => Ok(info),
            None => self.call_within(ReadEnvironmentInfo, INFO_TIMEOUT).await,
        }
    }

    /// Asks whether the server is there.
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
        let answered = timeout(limit, self.call(params)).await;
        answered.map_err(|_| ExecServerError::Timeout { method, limit })?
    }

    /// Asks the server for something. The place in line is taken by calling, not by awaiting;
    /// dropping the future gives up the answer, not the request.
    pub fn call<M>(&self, params: M) -> BoxFuture<'static, Result<M::Result, ExecServerError>>
    where
        M: Method + Send + 'static,
        M::Result: Send,
    {
        self.call_for_process(params, None)
    }

    /// Asks the server for something, perhaps about a process that belongs to it.
    pub(crate) fn call_for_process<M>(
        &self,
        params: M,
        target: Option<Arc<ProcessEvents>>,
    ) -> BoxFuture<'static, Result<M::Result, ExecServerError>>
    where
        M: Method + Send + 'static,
        M::Result: Send,
    {
        self.call_with_retry(params, target, RetryPolicy::of(M::NAME))
    }

    /// Starts a process whose events are taken from the first one on.
    pub(crate) fn start(
        &self,
        params: StartProcess,
        events: Arc<ProcessEvents>,
    ) -> impl Future<Output = Result<Started, ExecServerError>> + Send + use<> {
        self.call_with_sink(params, |reply| ResponseSink::Start(reply, events))
            .map(|reply| decode::<StartProcess>(&reply?))
    }

    /// Takes the events of a process that belongs to the server, from the answer on or before.
    pub(crate) fn attach_process(
        &self,
        params: AttachProcess,
        events: Arc<ProcessEvents>,
    ) -> impl Future<Output = Result<Attached, ExecServerError>> + Send + use<> {
        let after = params.after_seq.unwrap_or_default();
        let sink = move |reply| ResponseSink::Attach(AttachWaiter::Attach(reply), events, after);
        self.call_with_sink(params, sink)
            .map(|reply| decode::<AttachProcess>(&reply?))
    }

    /// Writes to a process, perhaps one of the server; the bytes travel raw if that was granted.
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
        self.call_with_data_for(params, "chunk", data, target, ResponseSink::Call)
            .map(|reply| decode::<WriteProcess>(&reply?))
    }

    /// Asks for something; `waiter` says who waits for the answer.
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
        let request = move |id: &RequestId| Outgoing::request(id, method.as_str(), &params);
        let retry = RetryPolicy::of(method);
        self.send(method, Box::new(request), retry, None, sink)
    }

    /// Asks for something whose effect is the same however often it is asked, whatever is true of the
    /// method.
    pub(crate) fn call_idempotent<M>(
        &self,
        params: M,
        target: Option<Arc<ProcessEvents>>,
    ) -> BoxFuture<'static, Result<M::Result, ExecServerError>>
    where
        M: Method + Send + 'static,
        M::Result: Send,
    {
        self.call_with_retry(params, target, RetryPolicy::Always)
    }

    fn call_with_retry<M>(
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
        let request = move |id: &RequestId| Outgoing::request(id, method.as_str(), &params);
        self.send(method, Box::new(request), retry, target, ResponseSink::Call)
            .map(|reply| decode::<M>(&reply?))
            .boxed()
    }

    /// Asks for something that carries bytes, if there is room for them.
    pub(crate) fn call_with_data<M, W>(
        &self,
        params: M,
        member: &'static str,
        data: Bytes,
        sink: W,
    ) -> impl Future<Output = CallResult> + Send + use<M, W>
    where
        M: Method + Send + 'static,
        W: FnOnce(oneshot::Sender<CallResult>) -> ResponseSink,
    {
        self.call_with_data_for(params, member, data, None, sink)
    }

    fn call_with_data_for<M, W>(
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
            .ok_or(ExecServerError::NoRoom(MAX_QUEUED_WRITE_BYTES))
            .map(|permit| {
                let method = M::NAME;
                let request = move |id: &RequestId| {
                    // It is taken until the request is not needed any more.
                    let _permit = &permit;
                    let name = method.as_str();
                    Outgoing::request_with_data(id, name, &params, member, data.clone())
                };
                let retry = RetryPolicy::of(method);
                self.send(method, Box::new(request), retry, target, sink)
            });
        async move { sent?.await }
    }

    pub(crate) fn shared(&self) -> &Arc<ClientShared> {
        &self.inner.shared
    }

    /// Returns whether the server has our extensions. The stock one has none: it knows no signal but
    /// `interrupt`, cannot end a command's input, and replaces no file in one step.
    pub fn has_extensions(&self) -> bool {
        self.server_kind() == ServerKind::Extended
    }

    /// Tells which members the server looks at.
    pub(crate) fn server_kind(&self) -> ServerKind {
        ServerKind::of(&self.session())
    }

    /// Fails if the server does not know a method that is ours.
    pub(crate) fn check(&self, method: MethodName) -> Result<(), ExecServerError> {
        let checked = self.server_kind().check_method(method);
        checked.map_err(ExecServerError::Remote)
    }

    /// Tells how data travels on this connection.
    pub(crate) fn encoding(&self) -> Encoding {
        encoding(&self.session())
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
            TrySendError::Full(_) => ExecServerError::TooMany(MAX_QUEUED_CALLS),
            TrySendError::Closed(_) => inner.disconnect_error(),
        });
        async move {
            // Whoever waits for an answer keeps the connection open, and read.
            let _waiting = waiting;
            sent?;
            answer
                .await
                .unwrap_or_else(|_| Err(inner.disconnect_error()))
        }
    }
}

impl ClientInner {
    /// Why nobody answers.
    fn disconnect_error(&self) -> ExecServerError {
        let lost = self.shared.session_state().borrow().lost.clone();
        lost.unwrap_or_else(driver_stopped).into()
    }
}

/// Decodes a result.
pub(crate) fn decode<M: Method>(answered: &RawResponse) -> Result<M::Result, ExecServerError> {
    serde_json::from_slice(&answered.result).map_err(|error| malformed::<M>(&error))
}

/// The result does not have the method's form.
pub(crate) fn malformed<M: Method>(reason: &dyn fmt::Display) -> ExecServerError {
    ExecServerError::Malformed {
        method: M::NAME.as_str(),
        reason: reason.to_string(),
    }
}

fn encoding(session: &InitializeResponse) -> Encoding {
    if session.extensions.contains(&Extension::BinaryData) {
        Encoding::Binary
    } else {
        Encoding::Text
    }
}

/// How long a server may take to answer `initialize`: as the stock client.
const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(10);

/// How a client introduces itself.
#[derive(Clone, Debug)]
pub struct ExecServerClientConnectOptions {
    /// Who connects, for the server's logs.
    pub client_name: String,
    /// How long the server may take to answer `initialize`.
    pub initialize_timeout: Duration,
    /// A detached session to take up again.
    pub resume_session_id: Option<SessionId>,
    /// Extensions to ask for. What is not granted is done without.
    pub extensions: Vec<String>,
    /// What requests belong to. Absent: they carry no trace.
    pub trace: Option<TraceSource>,
}

impl Default for ExecServerClientConnectOptions {
    fn default() -> Self {
        let extensions = ["binaryData", "lifecycle", "acknowledge"];
        Self {
            client_name: env!("CARGO_PKG_NAME").to_owned(),
            initialize_timeout: INITIALIZE_TIMEOUT,
            resume_session_id: None,
            extensions: extensions.map(str::to_owned).to_vec(),
            trace: None,
        }
    }
}

/// Where a client stands with its server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionState {
    /// There is a connection, and a session on it.
    Connected,
    /// The connection broke; another one is being opened. Calls wait.
    Reconnecting,
    /// The session is gone, and with it what belonged to it. The next call may begin another one.
    Lost,
}
