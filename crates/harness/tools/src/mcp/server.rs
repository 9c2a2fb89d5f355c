//! What a client of the protocol talks to: says who we are, lists the tools, and calls them.

use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use exec_env::{command::Stdin, environment::Environment};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CancelledNotificationParam, Implementation,
        InitializeRequestParams, InitializeResult, ListToolsResult, PaginatedRequestParams,
        ProtocolVersion, RequestId, ServerCapabilities, ServerConfig, Tool as Definition,
    },
    service::{NotificationContext, RequestContext, ServerInitializeError},
};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    http::{PendingSession, ResponseDelivery},
    progress,
    session::{
        EditLock, MAX_CALLS, McpContext, McpSession, ProgressSupport, SessionRegistry, SessionSlot,
    },
    tool::{self, RegisteredTool},
    tool_answer::ToolError,
    workspace::Workspace,
};
use crate::unified::{AbandonedCommand, CallId, Settings, WaitWindows};

/// What every client finds: an environment, a workspace in it, and tools.
#[derive(Clone, Debug)]
pub struct Tools {
    shared: Arc<McpShared>,
}

#[derive(Debug)]
struct McpShared {
    environment: Environment,
    workspace: Arc<Workspace>,
    tools: Vec<RegisteredTool>,
    version: String,
    registry: SessionRegistry,
    edits: EditLock,
}

impl Tools {
    /// Makes the tools for a workspace in an environment. `version` is what clients are told of us.
    pub fn new(environment: Environment, workspace: Workspace, version: &str) -> Self {
        Self {
            shared: Arc::new(McpShared {
                tools: tool::tools(workspace.enclosure()),
                environment,
                workspace: Arc::new(workspace),
                version: version.to_owned(),
                registry: SessionRegistry::default(),
                edits: EditLock::default(),
            }),
        }
    }

    /// Ends every command of every client.
    pub async fn shut_down(&self) {
        for session in self.shared.registry.sessions() {
            session.exec.shut_down().await;
        }
    }

    /// Whether one more client is refused.
    pub(super) fn is_full(&self) -> bool {
        self.shared.registry.is_full()
    }

    /// Waits until one more client is let in.
    pub(super) async fn wait_for_slot(&self) {
        self.shared.registry.wait_for_slot().await;
    }

    /// Makes what one client talks to.
    pub(super) fn server(&self, transport: ClientTransport) -> McpServer {
        McpServer {
            shared: self.shared.clone(),
            transport,
            slot: OnceLock::new(),
            requests: RequestMap::default(),
        }
    }
}

/// How a client came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ClientTransport {
    /// By pipes: the connection is the session.
    Stdio,
    /// By HTTP: sessions begin with `initialize`. The revision of the protocol without sessions is not
    /// spoken here, since a command could not be found again.
    Http,
}

/// What one client talks to. Its commands end when it is dropped.
#[derive(Debug)]
pub(super) struct McpServer {
    shared: Arc<McpShared>,
    transport: ClientTransport,
    slot: OnceLock<SessionSlot>,
    requests: RequestMap,
}

impl McpServer {
    /// The client's session, which begins with the first call.
    fn session(&self) -> Result<Arc<McpSession>, ErrorData> {
        if let Some(slot) = self.slot.get() {
            return Ok(slot.session().clone());
        }
        let shared = &self.shared;
        let session = McpSession::new(
            &shared.environment,
            &shared.workspace,
            &shared.edits,
            settings(),
        );
        let slot = self.shared.registry.register(session);
        let slot = slot.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(self.slot.get_or_init(|| slot).session().clone())
    }

    fn find_tool(&self, name: &str) -> Option<&RegisteredTool> {
        let mut tools = self.shared.tools.iter();
        tools.find(|tool| tool.definition().name == name)
    }

    fn instructions(&self) -> String {
        let workspace = &self.shared.workspace;
        let root = workspace.display_path(workspace.root());
        let allowed = workspace.restrictions();
        format!(
            "Runs commands and works on files in {root}, the workspace. Relative paths start there. {allowed} \
             exec_command returns when the command ends or when its time is up; it then goes on running, and \
             write_stdin writes to it or waits for more. Prefer search_files, find_files and read_file to \
             commands that do the same."
        )
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let implementation = Implementation::new("exec-server", &self.shared.version)
            .with_title("exec-server: commands and files");
        InitializeResult::new(capabilities)
            .with_server_info(implementation)
            .with_instructions(self.instructions())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        match self.transport {
            ClientTransport::Stdio => Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS),
            ClientTransport::Http => Cow::Borrowed(ProtocolVersion::known_up_to(
                &ProtocolVersion::LATEST_WITH_INITIALIZE,
            )),
        }
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        // Too many sessions are refused before a client relies on one.
        PendingSession::bind(&context, &self.session()?);
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.shared.tools.iter();
        let tools = tools.map(|tool| tool.definition().clone()).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    fn get_tool(&self, name: &str) -> Option<Definition> {
        self.find_tool(name).map(|tool| tool.definition().clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.find_tool(&request.name) else {
            let unknown = format!("there is no tool `{}`", request.name);
            return Err(ErrorData::invalid_params(unknown, None));
        };
        let session = self.session()?;
        let Ok(_under_way) = session.calls.try_acquire() else {
            let many = format!("{MAX_CALLS} calls are under way already");
            return Ok(ToolError(many).into_result().into());
        };
        let progress_support = match context.meta.get_progress_token() {
            Some(_) => ProgressSupport::Supported,
            None => ProgressSupport::Unsupported,
        };
        let ctx = McpContext::new(session.clone(), progress_support);
        self.requests.add(context.id.clone(), ctx.call().clone());
        let call = tool.call(request.arguments, &ctx);
        let answered = progress::run_with_progress(call, &ctx, &context).await;
        // One that is cancelled from here on is heard of in `on_cancelled`.
        if context.ct.is_cancelled() {
            session.exec.mark_undelivered(ctx.call());
        }
        if let Some(delivery) = ResponseDelivery::of(&context) {
            let (exec, call) = (session.exec.clone(), ctx.call().clone());
            delivery.on_failure(move || exec.mark_undelivered(&call));
        }
        Ok(match answered {
            Ok(answer) => answer.into_result().into(),
            Err(complaint) => complaint.into_result().into(),
        })
    }

    async fn on_cancelled(
        &self,
        notification: CancelledNotificationParam,
        _context: NotificationContext<RoleServer>,
    ) {
        let request = notification.request_id.as_ref();
        let call = request.and_then(|request| self.requests.call(request));
        if let (Some(call), Ok(session)) = (call, self.session()) {
            session.exec.mark_undelivered(&call);
        }
    }
}

/// Longest wait of a call. Only clients that are told that it goes on may ask for it.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// A client that cancels a call, or gives up on it, finds the command in the list. Programs that read their
/// input only because there is one would wait for it, and agents seldom mean to write to them.
pub(super) fn settings() -> Settings {
    Settings {
        windows: WaitWindows {
            max: MAX_WAIT,
            max_patient: MAX_WAIT,
            ..WaitWindows::default()
        },
        abandoned: AbandonedCommand::KeepRunning,
        stdin: Stdin::Null,
        ..Settings::default()
    }
}

/// Why a client was not served to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StdioError {
    /// Peer: it did not begin as the protocol says.
    #[error("the client did not begin a session")]
    Handshake(#[source] Box<ServerInitializeError>),
    /// We: the task that serves it broke.
    #[error("the session broke")]
    Broken(#[source] tokio::task::JoinError),
}

impl Tools {
    /// Serves one client until its input ends, then ends its commands. Calls that are under way then have
    /// a few seconds to be answered, for clients that write everything at once. Dropping the future ends
    /// nothing: call [`Tools::shut_down`] then.
    ///
    /// # Errors
    /// When the client does not speak the protocol.
    pub async fn serve<R, W>(&self, input: R, output: W) -> Result<(), StdioError>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let running = match self
            .server(ClientTransport::Stdio)
            .serve((input, output))
            .await
        {
            Ok(running) => running,
            // Whoever leaves before saying anything was only looking.
            Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(StdioError::Handshake(Box::new(error))),
        };
        let ended = running.waiting().await;
        self.shut_down().await;
        ended.map(drop).map_err(StdioError::Broken)
    }
}

/// Requests that are remembered: those that are under way, and as many that were answered.
const MAX_REMEMBERED_REQUESTS: usize = 2 * MAX_CALLS;

/// The calls that requests have become, the last one behind the others.
#[derive(Debug, Default)]
pub(super) struct RequestMap(Mutex<VecDeque<(RequestId, CallId)>>);

impl RequestMap {
    /// Remembers a request.
    pub(super) fn add(&self, request: RequestId, call: CallId) {
        let mut known = self.lock();
        if known.len() >= MAX_REMEMBERED_REQUESTS {
            known.pop_front();
        }
        known.push_back((request, call));
    }

    /// Returns the call that a request has become. A client may use an id again: the last one is meant.
    pub(super) fn call(&self, request: &RequestId) -> Option<CallId> {
        let known = self.lock();
        let found = known.iter().rev().find(|(id, _)| id == request);
        found.map(|(_, call)| call.clone())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(RequestId, CallId)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
