//! The MCP server: unified exec and file access as tools of the Model Context Protocol, over stdio
//! and HTTP.
//!
//! [`McpTools`] announces itself, lists the tools and calls them. Invariant: a failed command is a
//! normal result; a call that cannot be made is an error that says what to do; a waiting client
//! gets progress notifications. Commands end with the client that started them. Elsewhere: sockets,
//! authentication, and the choice of the environment.

mod commands;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod http;
mod patch;
mod progress;
mod session;
#[cfg(test)]
mod tests;
mod tool;
mod workspace;

pub use self::{
    http::{AuthCheck, McpHttpEndpoint, McpHttpOptions},
    workspace::{AgentWorkspace, GitAccess, NetworkMode, WorkspaceAccess},
};

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
    time::Duration,
};

use exec_env::environment::{Environment, StdinMode};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, Implementation, InitializeRequestParams,
        InitializeResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
        ServerCapabilities, ServerConfig, Tool as Definition,
    },
    service::{RequestContext, ServerInitializeError},
};
use tokio::io::{AsyncRead, AsyncWrite};

use self::{
    http::PendingSession,
    session::{
        EditLock, MAX_CALLS, McpContext, McpSession, ProgressSupport, SessionRegistry, SessionSlot,
    },
    tool::{RegisteredTool, ToolError},
};
use crate::unified::{AbandonedCommand, UnifiedExecSettings, WaitWindows};

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
    version: String,
    registry: SessionRegistry,
    edits: EditLock,
}

impl McpTools {
    /// Creates the tools for a workspace in an environment. `version` is announced to clients.
    pub fn new(environment: Environment, workspace: AgentWorkspace, version: &str) -> Self {
        Self {
            shared: Arc::new(McpShared {
                tools: tool::tools(workspace.access()),
                environment,
                workspace: Arc::new(workspace),
                version: version.to_owned(),
                registry: SessionRegistry::default(),
                edits: EditLock::default(),
            }),
        }
    }

    /// Ends all commands of all clients.
    pub async fn shut_down(&self) {
        for session in self.shared.registry.sessions() {
            session.exec.shut_down().await;
        }
    }

    /// Returns whether the session limit is reached.
    fn is_full(&self) -> bool {
        self.shared.registry.is_full()
    }

    /// Waits for a free session slot.
    async fn wait_for_slot(&self) {
        self.shared.registry.wait_for_slot().await;
    }

    /// Creates the server for one client.
    fn server(&self, transport: ClientTransport) -> McpServer {
        McpServer {
            shared: self.shared.clone(),
            transport,
            slot: OnceLock::new(),
        }
    }
}

/// Transport of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ClientTransport {
    /// Stdio: the connection is the session.
    Stdio,
    /// HTTP: `initialize` starts a session. The protocol revision without sessions is not
    /// supported, because a client could not find its commands again.
    Http,
}

/// The server for one client. Dropping it ends the client's commands.
#[derive(Debug)]
struct McpServer {
    shared: Arc<McpShared>,
    transport: ClientTransport,
    slot: OnceLock<SessionSlot>,
}

impl McpServer {
    /// Returns the client's session, which starts with the first call.
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
        // Enforce the session limit before the client relies on a session.
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
            let unknown = format!("unknown tool `{}`", request.name);
            return Err(ErrorData::invalid_params(unknown, None));
        };
        let session = self.session()?;
        let Ok(_permit) = session.calls.try_acquire() else {
            let text = format!("{MAX_CALLS} calls are already in progress");
            return Ok(ToolError(text).into_result().into());
        };
        let progress_support = match context.meta.get_progress_token() {
            Some(_) => ProgressSupport::Supported,
            None => ProgressSupport::Unsupported,
        };
        let ctx = McpContext::new(session.clone(), progress_support);
        let call = tool.call(request.arguments, &ctx);
        let answered = progress::run_with_progress(call, &ctx, &context).await;
        Ok(match answered {
            Ok(answer) => answer.into_result().into(),
            Err(error) => error.into_result().into(),
        })
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
    /// Serves one client until its input ends, then ends its commands. Pending calls get a few
    /// seconds to complete, for clients that write all requests at once. Dropping the future does
    /// not end the commands: call [`McpTools::shut_down`].
    ///
    /// # Errors
    /// Fails if the client violates the protocol.
    pub async fn serve<R, W>(&self, input: R, output: W) -> Result<(), McpStdioError>
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
            // A client that disconnects before its first message is not an error.
            Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(McpStdioError::Handshake(Box::new(error))),
        };
        let ended = running.waiting().await;
        self.shut_down().await;
        ended.map(drop).map_err(McpStdioError::Broken)
    }
}
