//! The MCP server: unified exec and file access as tools of the Model Context Protocol, over stdio
//! and HTTP.
//!
//! [`McpTools`] announces itself, lists the tools and calls them. Invariant: a failed command is a
//! normal result; a call that cannot be made is an error that says what to do; a waiting client
//! gets progress notifications.
//!
//! A client that sends `initialize` has a session, and its commands end with it. Requests of
//! revision 2026-07-28 are stateless: they share one session, and their commands are found by their
//! unguessable ids, with a durable store also after a restart of this process. Elsewhere: sockets,
//! authentication, and the choice of the environment.

mod commands;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod http;
mod patch;
mod progress;
mod session;
mod tasks;
#[cfg(test)]
mod tests;
mod tool;
mod workspace;

pub use self::{
    http::{AuthCheck, McpHttpEndpoint, McpHttpOptions},
    workspace::{AgentWorkspace, GitAccess, NetworkMode, WorkspaceAccess},
};

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use exec_env::environment::{Environment, StdinMode};
use exec_wire::process::EnvPolicy;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams,
        CreateTaskResult, GetTaskParams, GetTaskResult, Implementation, InitializeRequestParams,
        InitializeResult, ListToolsResult, MetaObject, PaginatedRequestParams, ServerCapabilities,
        ServerConfig, Tool as Definition, UpdateTaskParams,
    },
    service::{RequestContext, ServerInitializeError},
};
use tokio::io::{AsyncRead, AsyncWrite};

use self::{
    commands::ExecCommandTool,
    http::PendingSession,
    session::{
        EditLock, MAX_CALLS, McpContext, McpSession, ProgressSupport, SessionRegistry, SessionSlot,
    },
    tasks::CommandTasks,
    tool::{McpTool, RegisteredTool, ToolError},
};
use crate::unified::{AbandonedCommand, CommandStore, UnifiedExecSettings, WaitWindows};

/// Environment, workspace and tools shared by all clients.
#[derive(Clone, Debug)]
pub struct McpTools {
    shared: Arc<McpShared>,
}

#[derive(Debug)]
struct McpShared {
    environment: Environment,
    workspace: Arc<AgentWorkspace>,
    tools: Vec<RegisteredTool>,
    settings: UnifiedExecSettings,
    version: String,
    registry: SessionRegistry,
    edits: EditLock,
    /// Session of the requests without one.
    stateless: Arc<McpSession>,
    tasks: CommandTasks,
}

/// Where commands live, and what they inherit.
#[derive(Clone, Debug, Default)]
pub struct McpToolsOptions {
    /// Store for the commands of stateless requests. Absent: they end with the tools.
    pub store: Option<Arc<dyn CommandStore>>,
    /// Environment variables of commands. Absent: the host's, without secrets.
    pub env_policy: Option<EnvPolicy>,
}

impl McpTools {
    /// Creates the tools for a workspace in an environment. `version` is announced to clients.
    pub fn new(environment: Environment, workspace: AgentWorkspace, version: &str) -> Self {
        Self::with_options(environment, workspace, version, McpToolsOptions::default())
    }

    /// Creates the tools with options.
    pub fn with_options(
        environment: Environment,
        workspace: AgentWorkspace,
        version: &str,
        options: McpToolsOptions,
    ) -> Self {
        let mut settings = UnifiedExecSettings {
            scope: workspace.scope(),
            ..settings()
        };
        if let Some(policy) = options.env_policy {
            settings.env_policy = policy;
        }
        let (edits, tools) = (EditLock::default(), tool::tools(workspace.access()));
        let workspace = Arc::new(workspace);
        let stateless = Arc::new(McpSession::new(
            &environment,
            &workspace,
            &edits,
            settings.clone(),
            options.store,
        ));
        Self {
            shared: Arc::new(McpShared {
                tools,
                environment,
                workspace,
                settings,
                version: version.to_owned(),
                registry: SessionRegistry::default(),
                edits,
                tasks: CommandTasks::new(Arc::clone(&stateless)),
                stateless,
            }),
        }
    }

    /// Ends all commands of all clients, except those in a durable store.
    pub async fn shut_down(&self) {
        for session in self.shared.registry.sessions() {
            session.exec.shut_down().await;
        }
        self.shared.stateless.exec.detach().await;
    }

    /// Creates the server for one client, or for one stateless request over HTTP.
    fn server(&self) -> McpServer {
        McpServer {
            shared: self.shared.clone(),
            slot: OnceLock::new(),
        }
    }
}

/// The server for one client, or for one stateless request over HTTP. Dropping it ends the commands
/// of the client's session.
#[derive(Debug)]
struct McpServer {
    shared: Arc<McpShared>,
    /// The client's session. Empty until `initialize`: requests without it are stateless.
    slot: OnceLock<SessionSlot>,
}

impl McpServer {
    /// Starts the session of a client that initializes one.
    fn open_session(&self) -> Result<Arc<McpSession>, ErrorData> {
        if let Some(slot) = self.slot.get() {
            return Ok(slot.session.clone());
        }
        let shared = &self.shared;
        let session = McpSession::new(
            &shared.environment,
            &shared.workspace,
            &shared.edits,
            shared.settings.clone(),
            None,
        );
        let slot = self.shared.registry.register(session);
        let slot = slot.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(self.slot.get_or_init(|| slot).session.clone())
    }

    /// Returns the client's session, or the one that stateless requests share.
    fn session(&self) -> Arc<McpSession> {
        let slot = self.slot.get();
        Arc::clone(slot.map_or(&self.shared.stateless, |slot| &slot.session))
    }

    /// Returns whether requests are stateless.
    fn is_stateless(&self) -> bool {
        self.slot.get().is_none()
    }

    fn implementation(&self) -> Implementation {
        Implementation::new("exec-server", &self.shared.version)
            .with_title("exec-server: commands and files")
    }

    /// Returns the metadata of a result. A client with a session knows the server already.
    fn result_meta(&self) -> Option<MetaObject> {
        if !self.is_stateless() {
            return None;
        }
        let mut meta = MetaObject::new();
        let info = serde_json::to_value(self.implementation()).ok()?;
        meta.0.insert(SERVER_INFO.to_owned(), info);
        Some(meta)
    }

    /// Runs a command as a task.
    async fn call_as_task(&self, request: CallToolRequestParams) -> CallToolResponse {
        match self.shared.tasks.start(request.arguments).await {
            Ok(task) => {
                let mut result = CreateTaskResult::new(task);
                result.meta = self.result_meta();
                result.into()
            }
            Err(error) => self.tool_result(error.into_result()),
        }
    }

    fn tool_result(&self, mut result: CallToolResult) -> CallToolResponse {
        result.meta = self.result_meta();
        result.into()
    }

    fn find_tool(&self, name: &str) -> Option<&RegisteredTool> {
        let mut tools = self.shared.tools.iter();
        tools.find(|tool| tool.definition.name == name)
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

/// Member of a result's `_meta` that names the server.
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        // The extension belongs to the stateless revision.
        let capabilities = ServerCapabilities::builder().enable_tools();
        let capabilities = match self.is_stateless() {
            true => capabilities.enable_tasks().build(),
            false => capabilities.build(),
        };
        InitializeResult::new(capabilities)
            .with_server_info(self.implementation())
            .with_instructions(self.instructions())
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        // Enforce the session limit before the client relies on a session.
        PendingSession::bind(&context, &self.open_session()?);
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.shared.tools.iter();
        let tools = tools.map(|tool| tool.definition.clone()).collect();
        let mut result = ListToolsResult::with_all_items(tools);
        result.meta = self.result_meta();
        Ok(result)
    }

    fn get_tool(&self, name: &str) -> Option<Definition> {
        self.find_tool(name).map(|tool| tool.definition.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.find_tool(&request.name) else {
            let unknown = format!("unknown tool `{}`", request.name);
            return Err(ErrorData::invalid_params(unknown, None));
        };
        let session = self.session();
        let Ok(_permit) = session.calls.try_acquire() else {
            let text = format!("{MAX_CALLS} calls are already in progress");
            return Ok(self.tool_result(ToolError(text).into_result()));
        };
        // Only the request itself counts: a client declares its capabilities with each one.
        let capabilities = context.meta.client_capabilities();
        let accepts_task = capabilities.is_some_and(|declared| declared.supports_tasks());
        if accepts_task && self.is_stateless() && request.name == ExecCommandTool::NAME {
            return Ok(self.call_as_task(request).await);
        }
        let progress_support = match context.meta.get_progress_token() {
            Some(_) => ProgressSupport::Supported,
            None => ProgressSupport::Unsupported,
        };
        let ctx = McpContext::new(session.clone(), progress_support);
        let call = (tool.call)(request.arguments, &ctx);
        let answered = progress::run_with_progress(call, &ctx, &context).await;
        Ok(self.tool_result(match answered {
            Ok(answer) => answer.into_result(),
            Err(error) => error.into_result(),
        }))
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let task = self.shared.tasks.get(&request.task_id).await?;
        let mut result = GetTaskResult::new(task);
        result.meta = self.result_meta();
        Ok(result)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(self.shared.tasks.update(&request.task_id).await?)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(self.shared.tasks.cancel(&request.task_id).await?)
    }
}

/// Maximum wait of a call, for clients that support progress notifications.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Settings of unified exec for MCP. A command keeps running after a cancelled call, since clients
/// can list commands. It has no stdin by default, since some programs would otherwise wait for
/// input that agents rarely send.
fn settings() -> UnifiedExecSettings {
    UnifiedExecSettings {
        windows: WaitWindows {
            max: MAX_WAIT,
            max_patient: MAX_WAIT,
            ..WaitWindows::default()
        },
        abandoned: AbandonedCommand::KeepRunning,
        stdin: StdinMode::Null,
        ..UnifiedExecSettings::default()
    }
}

/// Why serving a client failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum McpStdioError {
    /// Peer: it did not initialize a session.
    #[error("client did not initialize a session")]
    Handshake(#[source] Box<ServerInitializeError>),
    /// Server: the task that served the client failed.
    #[error("session failed")]
    Broken(#[source] tokio::task::JoinError),
}

impl McpTools {
    /// Serves one client until its input ends, then ends its commands, except those in a durable
    /// store. Pending calls get a few seconds to complete, for clients that write all requests at
    /// once. Dropping the future does not end the commands: call [`McpTools::shut_down`].
    ///
    /// # Errors
    /// Fails if the client violates the protocol.
    pub async fn serve<R, W>(&self, input: R, output: W) -> Result<(), McpStdioError>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let running = match self.server().serve((input, output)).await {
            Ok(running) => running,
            // A client that disconnects before its first message is not an error.
            Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(McpStdioError::Handshake(Box::new(error))),
        };
        let ended = running.waiting().await;
        self.shut_down().await;
        ended.map(drop).map_err(McpStdioError::Broken)
    }
}
