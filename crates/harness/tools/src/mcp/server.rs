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
    http::{Delivery, Visitor},
    progress,
    session::{Edits, MAX_CALLS, Patience, Place, Places, Session, Work},
    tool::{self, Listed},
    tool_answer::Complaint,
    workspace::Workspace,
};
use crate::unified::{Abandoned, CallId, Settings, Windows};

/// What every client finds: an environment, a workspace in it, and tools.
#[derive(Clone, Debug)]
pub struct Tools {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    environment: Environment,
    workspace: Arc<Workspace>,
    tools: Vec<Listed>,
    version: String,
    places: Places,
    edits: Edits,
}

impl Tools {
    /// Makes the tools for a workspace in an environment. `version` is what clients are told of us.
    pub fn new(environment: Environment, workspace: Workspace, version: &str) -> Self {
        Self {
            shared: Arc::new(Shared {
                tools: tool::tools(workspace.enclosure()),
                environment,
                workspace: Arc::new(workspace),
                version: version.to_owned(),
                places: Places::default(),
                edits: Edits::default(),
            }),
        }
    }

    /// Ends every command of every client.
    pub async fn shut_down(&self) {
        for session in self.shared.places.sessions() {
            session.exec.shut_down().await;
        }
    }

    /// Whether one more client is refused.
    pub(super) fn are_full(&self) -> bool {
        self.shared.places.are_full()
    }

    /// Waits until one more client is let in.
    pub(super) async fn room(&self) {
        self.shared.places.room().await;
    }

    /// Makes what one client talks to.
    pub(super) fn server(&self, door: Door) -> Server {
        Server {
            shared: self.shared.clone(),
            door,
            place: OnceLock::new(),
            receipts: Receipts::default(),
        }
    }
}

/// How a client came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Door {
    /// By pipes: the connection is the session.
    Stdio,
    /// By HTTP: sessions begin with `initialize`. The revision of the protocol without sessions is not
    /// spoken here, since a command could not be found again.
    Http,
}

/// What one client talks to. Its commands end when it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    shared: Arc<Shared>,
    door: Door,
    place: OnceLock<Place>,
    receipts: Receipts,
}

impl Server {
    /// The client's session, which begins with the first call.
    fn session(&self) -> Result<Arc<Session>, ErrorData> {
        if let Some(place) = self.place.get() {
            return Ok(place.session().clone());
        }
        let shared = &self.shared;
        let session = Session::new(
            &shared.environment,
            &shared.workspace,
            &shared.edits,
            settings(),
        );
        let place = self.shared.places.take(session);
        let place = place.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(self.place.get_or_init(|| place).session().clone())
    }

    fn listed(&self, name: &str) -> Option<&Listed> {
        let mut tools = self.shared.tools.iter();
        tools.find(|tool| tool.definition().name == name)
    }

    fn instructions(&self) -> String {
        let workspace = &self.shared.workspace;
        let root = workspace.show(workspace.root());
        let allowed = workspace.restrictions();
        format!(
            "Runs commands and works on files in {root}, the workspace. Relative paths start there. {allowed} \
             exec_command returns when the command ends or when its time is up; it then goes on running, and \
             write_stdin writes to it or waits for more. Prefer search_files, find_files and read_file to \
             commands that do the same."
        )
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let us = Implementation::new("exec-server", &self.shared.version)
            .with_title("exec-server: commands and files");
        InitializeResult::new(capabilities)
            .with_server_info(us)
            .with_instructions(self.instructions())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        match self.door {
            Door::Stdio => Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS),
            Door::Http => Cow::Borrowed(ProtocolVersion::known_up_to(
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
        Visitor::begin(&context, &self.session()?);
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
        self.listed(name).map(|tool| tool.definition().clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.listed(&request.name) else {
            let unknown = format!("there is no tool `{}`", request.name);
            return Err(ErrorData::invalid_params(unknown, None));
        };
        let session = self.session()?;
        let Ok(_under_way) = session.calls.try_acquire() else {
            let many = format!("{MAX_CALLS} calls are under way already");
            return Ok(Complaint(many).into_result().into());
        };
        let patience = match context.meta.get_progress_token() {
            Some(_) => Patience::Told,
            None => Patience::NotTold,
        };
        let work = Work::new(session.clone(), patience);
        self.receipts.add(context.id.clone(), work.call().clone());
        let call = tool.call(request.arguments, &work);
        let answered = progress::wait(call, &work, &context).await;
        // One that is cancelled from here on is heard of in `on_cancelled`.
        if context.ct.is_cancelled() {
            session.exec.was_not_received(work.call());
        }
        if let Some(delivery) = Delivery::of(&context) {
            let (exec, call) = (session.exec.clone(), work.call().clone());
            delivery.if_it_fails(move || exec.was_not_received(&call));
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
        let call = request.and_then(|request| self.receipts.call(request));
        if let (Some(call), Ok(session)) = (call, self.session()) {
            session.exec.was_not_received(&call);
        }
    }
}

/// Longest wait of a call. Only clients that are told that it goes on may ask for it.
const LONGEST: Duration = Duration::from_secs(600);

/// A client that cancels a call, or gives up on it, finds the command in the list. Programs that read their
/// input only because there is one would wait for it, and agents seldom mean to write to them.
pub(super) fn settings() -> Settings {
    Settings {
        windows: Windows {
            max: LONGEST,
            max_patient: LONGEST,
            ..Windows::default()
        },
        abandoned: Abandoned::RunsOn,
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
        let running = match self.server(Door::Stdio).serve((input, output)).await {
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
const REMEMBERED: usize = 2 * MAX_CALLS;

/// The calls that requests have become, the last one behind the others.
#[derive(Debug, Default)]
pub(super) struct Receipts(Mutex<VecDeque<(RequestId, CallId)>>);

impl Receipts {
    /// Remembers a request.
    pub(super) fn add(&self, request: RequestId, call: CallId) {
        let mut known = self.lock();
        if known.len() >= REMEMBERED {
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
