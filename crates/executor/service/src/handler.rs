//! Request handlers: each turns one request into one call of the environment.

mod files;
mod history;
mod http_streams;
mod process;
mod start;
mod tunnels;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_transport::link::{BinarySupport, Principal};
use exec_wire::{
    environment::EnvironmentStatus,
    error::RpcError,
    fs::CanonicalPath,
    id::{ProcessId, SessionId},
    initialize::{InitializeParams, InitializeResponse, ProtocolExtension},
    message::RequestId,
    method::MethodCall,
    outgoing_message::OutgoingMessage,
    process::AcknowledgeProcess,
    server::UpgradeServer,
    tunnel::TunnelMessage,
};
use futures_util::future::{BoxFuture, FutureExt};
use serde::Serialize;
use tracing::Span;

use self::http_streams::HttpStreams;
use crate::{
    connection_files::ConnectionFiles,
    metrics::RequestOutcome,
    request_guard::truncate_for_log,
    send_queue::SendQueue,
    service::{DurabilityDefault, OrdinaryRefusal, ServerControl, ServiceShared},
    session::{ProcessLookup, RetentionMode, Session, SessionProcess},
};

/// When a request has its result.
pub(crate) enum Dispatch {
    /// The request is complete.
    Ready(RequestResult),
    /// The request is running. Conflicting requests wait for it.
    Running(BoxFuture<'static, RequestResult>),
    /// The request has taken effect or only reads, and waits for something. No request waits for
    /// it.
    Waiting(BoxFuture<'static, RequestResult>),
}

/// Handles the requests of one connection.
pub(crate) struct RequestHandler {
    shared: Arc<ServiceShared>,
    send_queue: Arc<SendQueue>,
    files: Arc<ConnectionFiles>,
    streams: Arc<HttpStreams>,
    binary: BinarySupport,
    accepts_binary: bool,
    has_tunnels: bool,
    session: Option<Arc<Session>>,
    /// Authenticated client of the connection, if it was authenticated by name.
    principal: Option<Principal>,
    /// Span of the connection.
    connection: Span,
}

impl RequestHandler {
    pub(crate) fn new(
        shared: Arc<ServiceShared>,
        send_queue: Arc<SendQueue>,
        binary: BinarySupport,
        principal: Option<Principal>,
    ) -> Self {
        Self {
            shared,
            send_queue,
            files: Arc::default(),
            streams: Arc::default(),
            binary,
            accepts_binary: false,
            has_tunnels: false,
            session: None,
            principal,
            connection: Span::current(),
        }
    }

    /// Returns the session id after `initialize`.
    pub(crate) fn session_id(&self) -> Option<&SessionId> {
        self.session.as_ref().map(|session| &session.id)
    }

    pub(crate) fn accepts_binary(&self) -> bool {
        self.accepts_binary
    }

    pub(crate) fn into_session(self) -> Option<Arc<Session>> {
        self.session
    }

    /// Opens or resumes the connection's session.
    pub(crate) async fn initialize(
        &mut self,
        params: &InitializeParams,
    ) -> Result<InitializeResponse, RpcError> {
        let requested = params.extensions.as_deref().unwrap_or_default();
        let granted: Vec<ProtocolExtension> = ProtocolExtension::ALL
            .iter()
            .copied()
            .filter(|extension| {
                requested
                    .iter()
                    .any(|name| ProtocolExtension::parse(name) == Some(*extension))
                    && (*extension != ProtocolExtension::BinaryData
                        || self.binary == BinarySupport::Supported)
            })
            .collect();
        let environment = self.shared.open();
        let info = environment.backend.info().await?;
        let sessions = &self.shared.sessions;
        let retention_mode = if granted.contains(&ProtocolExtension::Acknowledge) {
            RetentionMode::UntilAcknowledged
        } else {
            RetentionMode::RetainedOnly
        };
        let session = match &params.resume_session_id {
            Some(id) => sessions.resume(id, &self.send_queue, retention_mode)?,
            None => {
                let principal = self.principal.clone();
                sessions.open(
                    environment,
                    principal,
                    Arc::clone(&self.send_queue),
                    retention_mode,
                )?
            }
        };
        for extension in &granted {
            self.send_queue.grant(*extension);
            self.accepts_binary |= *extension == ProtocolExtension::BinaryData;
            self.has_tunnels |= *extension == ProtocolExtension::Tunnels;
        }
        let (span, client) = (Span::current(), truncate_for_log(&params.client_name));
        span.record("session", session.id.redacted());
        self.connection.record("session", session.id.redacted());
        self.connection.record("client", client);
        let event = if params.resume_session_id.is_some() {
            self.shared.metrics.sessions_resumed.increment();
            "session resumed"
        } else {
            self.shared.metrics.sessions_opened.increment();
            "session begun"
        };
        tracing::info!(target: "exec_service::session", client, session = session.id.redacted(), "{event}");
        let session_id = session.id.clone();
        if let Some(durability) = &self.shared.config.durability
            && durability.default == DurabilityDefault::All
            && let Err(error) = session.save(&*durability.state)
        {
            tracing::warn!(%error, "failed to save a session; it will not outlive this server");
        }
        self.session = Some(session);
        Ok(InitializeResponse {
            session_id,
            environment_info: Some(info),
            extensions: granted,
            server: Some(self.shared.config.server_name.clone()),
            session_ttl_ms: Some(millis(self.shared.config.session_ttl)),
        })
    }

    /// Moves the ack cursor of a process and releases its output up to there.
    pub(crate) fn acknowledge(&self, acknowledged: &AcknowledgeProcess) {
        if let Some(session) = &self.session {
            session.acknowledge(acknowledged);
        }
    }

    /// Begins to send what the session's tunnels have for the client. Closes them if the client does
    /// not support them: an earlier client of the session did.
    pub(crate) fn begin_tunnels(&self) {
        let Some(session) = &self.session else {
            return;
        };
        if self.has_tunnels {
            self.send_queue.send_tunnels(session.tunnels.connect());
        } else {
            session.tunnels.clear("client does not support tunnels");
        }
    }

    /// Handles a message about a tunnel.
    pub(crate) fn handle_tunnel(&self, message: TunnelMessage) {
        if let Some(session) = &self.session {
            session.tunnels.handle_message(message);
        }
    }

    /// Resolves the file handle of a block request.
    pub(crate) fn file_handle(&self, call: &MethodCall) -> PinnedFile {
        self.files.handle(call.file_handle()?)
    }

    /// Dispatches a request to its handler. Immediate effects are complete when this returns.
    pub(crate) fn dispatch(&self, id: RequestId, call: MethodCall, file: PinnedFile) -> Dispatch {
        let Some(session) = self.session.clone() else {
            let error = RpcError::invalid_request("connection has no session");
            return Dispatch::Ready(RequestResult::error(&id, &error));
        };
        let handlers = HandlerContext {
            shared: &self.shared,
            send_queue: &self.send_queue,
            files: &self.files,
            streams: &self.streams,
            has_tunnels: self.has_tunnels,
            session,
        };
        let dispatched = handlers.dispatch(id.clone(), call, file);
        dispatched.unwrap_or_else(|error| Dispatch::Ready(RequestResult::error(&id, &error)))
    }
}

pub(crate) use self::files::PinnedFile;

/// Shared state that every handler needs.
struct HandlerContext<'a> {
    shared: &'a Arc<ServiceShared>,
    send_queue: &'a Arc<SendQueue>,
    files: &'a Arc<ConnectionFiles>,
    streams: &'a Arc<HttpStreams>,
    has_tunnels: bool,
    session: Arc<Session>,
}

impl HandlerContext<'_> {
    /// Dispatches a request to its handler. An error is its response.
    fn dispatch(
        &self,
        id: RequestId,
        call: MethodCall,
        file: PinnedFile,
    ) -> Result<Dispatch, RpcError> {
        Ok(match call {
            MethodCall::Initialize(_) => {
                let text = "initialize may only be sent once per connection";
                return Err(RpcError::invalid_request(text));
            }
            MethodCall::EnvironmentInfo(_) => {
                let backend = Arc::clone(&self.session.environment.backend);
                Dispatch::Waiting(encode_result(id, async move { backend.info().await }))
            }
            MethodCall::EnvironmentStatus(_) => respond_now(
                &id,
                Ok(EnvironmentStatus {
                    status: "ready".to_owned(),
                }),
            ),
            MethodCall::EnvironmentConfigRead(params) => {
                self.list_request(id, |it| it.catalog.read_config(params))
            }
            MethodCall::CapabilityRootsDiscover(params) => {
                self.list_request(id, |it| it.catalog.discover_roots(params))
            }
            MethodCall::CapabilitiesDiscover(params) => {
                self.list_request(id, |it| it.catalog.discover(params))
            }
            MethodCall::HttpRequest(request) => self.http_request(id, request)?,
            MethodCall::HttpRequestCancel(params) => self.cancel_http(&id, &params),
            MethodCall::ProcessStart(params) => self.start(id, params)?,
            MethodCall::ProcessRead(params) => self.read(id, &params)?,
            MethodCall::ProcessWrite(params) => self.write(id, params),
            MethodCall::ProcessCloseStdin(params) => self.close_stdin(id, params),
            MethodCall::ProcessResize(params) => self.resize(id, &params)?,
            MethodCall::ProcessSignal(params) => self.signal(id, &params),
            MethodCall::ProcessTerminate(params) => {
                self.terminate(id, &params.process_id, params.mode)
            }
            MethodCall::ProcessWait(params) => self.wait(id, &params)?,
            MethodCall::ProcessSnapshot(params) => self.snapshot(id, &params.process_id)?,
            MethodCall::ProcessAttach(params) => self.attach(id, params),
            MethodCall::HistoryList(_) => self.list_history(id)?,
            MethodCall::HistoryPurge(params) => self.purge_history(id, params)?,
            MethodCall::ProcessRelease(params) => self.release(id, &params)?,
            MethodCall::ProcessList(params) => respond_now(&id, Ok(self.list(params))),
            MethodCall::FsReadFile(params) => self.read_file(id, params),
            MethodCall::FsWriteFile(params) => self.write_file(id, params)?,
            MethodCall::FsCreateDirectory(params) => {
                files::file_done(id, self.file_system().create_directory(params))
            }
            MethodCall::FsGetMetadata(params) => {
                files::file_result(id, self.file_system().metadata(params), |metadata| metadata)
            }
            MethodCall::FsCanonicalize(params) => {
                files::file_result(id, self.file_system().canonicalize(params), |path| {
                    CanonicalPath { path }
                })
            }
            MethodCall::FsReadDirectory(params) => {
                self.list_request(id, |it| it.files.read_directory(params))
            }
            MethodCall::FsWalk(params) => self.list_request(id, |it| it.files.walk(params)),
            MethodCall::FsRemove(params) => files::file_done(id, self.file_system().remove(params)),
            MethodCall::FsCopy(params) => files::file_done(id, self.file_system().copy(params)),
            MethodCall::FsSetMetadata(params) => {
                files::file_done(id, self.file_system().set_metadata(params))
            }
            MethodCall::FsCreateSymlink(params) => {
                files::file_done(id, self.file_system().create_symlink(params))
            }
            MethodCall::FsRename(params) => files::file_done(id, self.file_system().rename(params)),
            MethodCall::FsOpen(params) => self.open_file(id, params)?,
            MethodCall::FsReadBlock(params) => self.read_block(id, params, file)?,
            MethodCall::FsWriteBlock(params) => self.write_block(id, params, file)?,
            MethodCall::FsClose(params) => self.close_file(&id, &params)?,
            MethodCall::FsWatchMissing(params) => self.watch_missing(id, params),
            MethodCall::FsWatch(params) => self.watch(id, params)?,
            MethodCall::FsUnwatch(params) => self.unwatch(&id, &params),
            MethodCall::FsSearch(params) => self.list_request(id, |it| it.files.search(params)),
            MethodCall::FsFind(params) => self.list_request(id, |it| it.files.find(params)),
            MethodCall::TunnelOpen(params) => {
                let network = self.network(params.process_id.as_ref());
                self.tunnel_request(id, |tunnels| tunnels.open(network, params))?
            }
            MethodCall::TunnelListen(params) => {
                let network = self.network(params.process_id.as_ref());
                self.tunnel_request(id, |tunnels| tunnels.listen(network, params))?
            }
            MethodCall::PortsList(params) => {
                respond_when_ready(id, self.ports(params), |ports| ports)
            }
            MethodCall::ServerStatus(_) => respond_now(&id, Ok(self.server_control()?.status())),
            MethodCall::ServerUpgrade(params) => self.upgrade(id, params)?,
            MethodCall::CommandExec(params) => self.exec(id, params)?,
            MethodCall::CommandExecWrite(params) => self.exec_write(id, params)?,
            MethodCall::CommandExecTerminate(params) => {
                self.terminate(id, &params.process_id, None)
            }
        })
    }

    /// Prepares another program to take over.
    fn upgrade(&self, id: RequestId, params: UpgradeServer) -> Result<Dispatch, RpcError> {
        let control = self.server_control()?;
        if !self.shared.config.allow_direct_exec {
            let text = "direct exec is disabled on this server";
            return Err(RpcError::invalid_request(text));
        }
        let ordinary = self.shared.ordinary_processes();
        let refusal = OrdinaryRefusal::begin(self.shared);
        let upgrade = control.upgrade(params, &ordinary);
        Ok(respond_when_ready(id, upgrade, move |outcome| {
            if outcome.is_ok() {
                refusal.keep();
            }
            outcome
        }))
    }

    /// Looks up a process of the session, then of the server.
    fn find(&self, id: &ProcessId) -> ProcessLookup {
        match self.session.find(id) {
            ProcessLookup::Unknown => self.shared.detached.find(id),
            lookup @ (ProcessLookup::Starting(_) | ProcessLookup::Started(_)) => lookup,
        }
    }

    /// Returns what clients may ask of the server process.
    fn server_control(&self) -> Result<&Arc<dyn ServerControl>, RpcError> {
        self.shared.control.get().ok_or_else(|| {
            RpcError::invalid_request("this server cannot be controlled by its clients")
        })
    }

    /// Looks up a started process, or returns an error.
    fn require_process(&self, id: &ProcessId) -> Result<Arc<SessionProcess>, RpcError> {
        match self.find(id) {
            ProcessLookup::Started(process) => Ok(process),
            ProcessLookup::Starting(_) => Err(RpcError::invalid_request(format!(
                "process {id} is still starting"
            ))),
            ProcessLookup::Unknown => Err(RpcError::invalid_request(format!(
                "unknown process id {id}"
            ))),
        }
    }
}

/// Converts a duration to milliseconds, the unit on the wire.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn respond_now<T: Serialize>(id: &RequestId, result: Result<T, RpcError>) -> Dispatch {
    Dispatch::Ready(RequestResult::new(id, &result))
}

/// Encodes the result of a future.
fn encode_result<T: Serialize>(
    id: RequestId,
    result: impl Future<Output = Result<T, RpcError>> + Send + 'static,
) -> BoxFuture<'static, RequestResult> {
    async move { RequestResult::new(&id, &result.await) }.boxed()
}

/// Responds at once if the future is ready, which is the normal case. Otherwise waits for it.
fn respond_when_ready<T, E, R>(
    id: RequestId,
    future: BoxFuture<'static, Result<T, E>>,
    result: impl FnOnce(Result<T, E>) -> Result<R, RpcError> + Send + 'static,
) -> Dispatch
where
    T: 'static,
    E: 'static,
    R: Serialize,
{
    let mut future = future;
    match (&mut future).now_or_never() {
        Some(outcome) => respond_now(&id, result(outcome)),
        None => {
            Dispatch::Waiting(async move { RequestResult::new(&id, &result(future.await)) }.boxed())
        }
    }
}

/// Result of a request: the encoded response and the outcome to record.
#[derive(Debug)]
pub(crate) struct RequestResult {
    /// Absent if it was sent.
    message: Option<OutgoingMessage>,
    pub(crate) outcome: RequestOutcome,
}

impl RequestResult {
    pub(crate) fn new<T: Serialize>(id: &RequestId, result: &Result<T, RpcError>) -> Self {
        match result {
            Ok(result) => Self::ok(OutgoingMessage::result(id, result)),
            Err(error) => Self::error(id, error),
        }
    }

    /// Encodes a result that has a data member.
    pub(crate) fn with_data<T: Serialize>(
        id: &RequestId,
        result: &T,
        member: &'static str,
        data: Bytes,
    ) -> Self {
        Self::ok(OutgoingMessage::result(id, result).with_data(member, data))
    }

    fn ok(message: OutgoingMessage) -> Self {
        Self {
            message: Some(message),
            outcome: RequestOutcome::Ok,
        }
    }

    pub(crate) fn error(id: &RequestId, error: &RpcError) -> Self {
        Self {
            message: Some(OutgoingMessage::error(id, error)),
            outcome: RequestOutcome::of(error),
        }
    }

    /// Takes the response, unless it was sent.
    pub(crate) fn take_message(&mut self) -> Option<OutgoingMessage> {
        self.message.take()
    }

    /// Sends the response, unless it was sent. A handler does this itself if messages follow it or
    /// if it holds a permit until then.
    pub(crate) async fn send(self, send_queue: &SendQueue) -> Self {
        self.send_with(send_queue, || {}).await
    }

    /// Sends the response like [`Self::send`], and calls `before_send` when there is space for it.
    pub(crate) async fn send_with(
        mut self,
        send_queue: &SendQueue,
        before_send: impl FnOnce(),
    ) -> Self {
        if let Some(message) = self.message.take() {
            send_queue.send_with(message, before_send).await;
        }
        self
    }
}
