//! Many clients over HTTP, each with a session of its own.
//!
//! Requests come from whoever serves the socket, and brings the check of who may come. Here: one path, no
//! web pages, names that this machine has, bodies and sessions that are bounded, and sessions that end when
//! nobody uses them.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use rmcp::{
    RoleServer,
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService,
        session::{SessionManager, local::LocalSessionManager},
    },
};
use tokio::time::{Instant, timeout};

use super::{
    server::{ClientTransport, McpServer, Tools},
    session::McpSession,
};

/// Largest request: what a file of a few MiB takes as a JSON string.
const MAX_BODY_BYTES: usize = 16 << 20;
/// How long a session lives that nobody uses. Longer than the longest call.
const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// How long a request and the head of its answer may take. What a call says comes behind that.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a session that runs nothing may take to end.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(5);
/// The header that names a session.
const SESSION_HEADER: &str = "mcp-session-id";

/// Decides by the `Authorization` header of a request whether it is let in, or why not.
pub type AuthCheck = Arc<dyn Fn(Option<&[u8]>) -> Result<(), String> + Send + Sync>;

/// Which requests are let in.
#[derive(Clone)]
pub struct HttpDoorOptions {
    /// Who may come.
    pub admit: AuthCheck,
    /// Names, beside those of the loopback interface, by which clients call this machine: `host` or
    /// `host:port`. A page whose name was made to lead here calls it by another.
    pub hosts: Vec<String>,
}

impl fmt::Debug for HttpDoorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpDoorOptions")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// Answers requests for `/mcp`.
#[derive(Clone)]
pub struct HttpDoor {
    tools: Tools,
    admit: AuthCheck,
    http_sessions: Arc<HttpSessions>,
    sessions: Arc<LocalSessionManager>,
    service: StreamableHttpService<McpServer, LocalSessionManager>,
}

impl fmt::Debug for HttpDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpDoor").finish_non_exhaustive()
    }
}

impl HttpDoor {
    /// The path that is answered.
    pub const PATH: &'static str = "/mcp";

    /// Opens the door.
    pub fn new(tools: Tools, options: HttpDoorOptions) -> Self {
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(SESSION_IDLE_TIMEOUT);
        let mut config = StreamableHttpServerConfig::default()
            .with_max_request_body_bytes(MAX_BODY_BYTES)
            .enforce_origin_validation();
        config.allowed_hosts.extend(options.hosts);
        let servers = tools.clone();
        let server = move || Ok(servers.server(ClientTransport::Http));
        let sessions = Arc::new(sessions);
        Self {
            tools,
            admit: options.admit,
            http_sessions: Arc::default(),
            sessions: sessions.clone(),
            service: StreamableHttpService::new(server, sessions, config),
        }
    }

    /// Answers one request.
    pub async fn answer<B>(&self, mut request: Request<B>) -> Response<BoxBody<Bytes, Infallible>>
    where
        B: BodyExt + Send + 'static,
        B::Error: fmt::Display,
    {
        if request.uri().path() != Self::PATH {
            return text_response(StatusCode::NOT_FOUND, "MCP is at /mcp\n".to_owned());
        }
        let authorization = request.headers().get(header::AUTHORIZATION);
        if let Err(reason) = (self.admit)(authorization.map(HeaderValue::as_bytes)) {
            let mut response = text_response(StatusCode::UNAUTHORIZED, reason);
            let bearer = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, bearer);
            return response;
        }
        // A client that has a session may go on; said here, since the library would call it our fault.
        let session_entry = request.headers().get(SESSION_HEADER);
        let is_new = session_entry.is_none() && request.method() == Method::POST;
        if let Some(name) = session_entry.and_then(|name| name.to_str().ok()) {
            self.http_sessions.touch(name);
        }
        if is_new && !self.reserve_session().await {
            let text = "too many sessions\n".to_owned();
            let mut response = text_response(StatusCode::SERVICE_UNAVAILABLE, text);
            let seconds = HeaderValue::from_static("60");
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
            return response;
        }
        let ends_session = request.method() == Method::DELETE;
        let delivery = ResponseDelivery::default();
        if request.method() == Method::POST {
            request.extensions_mut().insert(delivery.clone());
        }
        let pending_session = PendingSession::default();
        if is_new {
            request.extensions_mut().insert(pending_session.clone());
        }
        let answered = timeout(RESPONSE_TIMEOUT, self.service.handle(request)).await;
        let mut response =
            answered.unwrap_or_else(|_| text_response(StatusCode::REQUEST_TIMEOUT, String::new()));
        let named = response.headers().get(SESSION_HEADER);
        if let (true, Some(name)) = (is_new, named.and_then(|name| name.to_str().ok())) {
            self.http_sessions.insert_session(name, &pending_session);
        }
        // Clients take 202 for a session that has not ended.
        if ends_session && response.status() == StatusCode::ACCEPTED {
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        delivery.track(response)
    }

    /// Tells whether one more session may begin. If there are too many, the one that was idle for the longest
    /// time ends for it: clients come and go without a word, and one that comes back begins anew.
    async fn reserve_session(&self) -> bool {
        if !self.tools.is_full() {
            return true;
        }
        let Some(name) = self.http_sessions.take_least_recently_used() else {
            return false;
        };
        tracing::debug!(session = name, "idle session ends to make room");
        if let Err(error) = self.sessions.close_session(&name.into()).await {
            tracing::warn!(%error, "idle session was not ended");
        }
        timeout(EVICTION_TIMEOUT, self.tools.wait_for_slot())
            .await
            .is_ok()
    }

    /// Ends every session and what runs in it.
    pub async fn close(&self) {
        self.service.config.cancellation_token.cancel();
        self.tools.shut_down().await;
    }
}

fn text_response(status: StatusCode, text: String) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(Bytes::from(text)).boxed());
    *response.status_mut() = status;
    response
}

/// The guests, by the names that the library gave them. As many as there are sessions.
#[derive(Debug, Default)]
pub(super) struct HttpSessions(Mutex<BTreeMap<String, HttpSession>>);

#[derive(Debug)]
struct HttpSession {
    session: Weak<McpSession>,
    used: Instant,
}

/// Somebody at the door, whose session is not known yet. It travels with the first request.
#[derive(Clone, Debug, Default)]
pub(in crate::mcp) struct PendingSession(Arc<OnceLock<Weak<McpSession>>>);

impl PendingSession {
    /// Tells the session that a first request began.
    pub(in crate::mcp) fn bind(context: &RequestContext<RoleServer>, session: &Arc<McpSession>) {
        let parts = context.extensions.get::<Parts>();
        if let Some(Self(bound)) = parts.and_then(|parts| parts.extensions.get::<Self>()) {
            bound.get_or_init(|| Arc::downgrade(session));
        }
    }
}

impl HttpSessions {
    /// Takes note of a visitor who was let in by this name.
    pub(super) fn insert_session(&self, name: &str, pending_session: &PendingSession) {
        let Some(session) = pending_session.0.get() else {
            return;
        };
        let mut http_sessions = self.lock();
        http_sessions.retain(|_, session_entry| session_entry.session.strong_count() > 0);
        let session_entry = HttpSession {
            session: session.clone(),
            used: Instant::now(),
        };
        http_sessions.insert(name.to_owned(), session_entry);
    }

    /// Takes note that a guest does something.
    pub(super) fn touch(&self, name: &str) {
        if let Some(session_entry) = self.lock().get_mut(name) {
            session_entry.used = Instant::now();
        }
    }

    /// Returns the guest who has done nothing for the longest time, and forgets it. One with a call or a
    /// command under way is not idle.
    pub(super) fn take_least_recently_used(&self) -> Option<String> {
        let mut http_sessions = self.lock();
        let idle = http_sessions.iter().filter(|(_, session_entry)| {
            let session = session_entry.session.upgrade();
            session.is_some_and(|session| session.is_idle())
        });
        let (name, _) = idle.min_by_key(|(_, session_entry)| session_entry.used)?;
        let name = name.clone();
        http_sessions.remove(&name);
        Some(name)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, HttpSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How an event begins that is the answer. Those before it are notifications, which have no id.
const RESPONSE_PREFIX: &[u8] = br#"data: {"jsonrpc":"2.0","id":"#;

/// One request, shared by those who answer it and those who carry the answer.
#[derive(Clone, Default)]
pub(in crate::mcp) struct ResponseDelivery(Arc<Mutex<DeliveryState>>);

/// What is done if an answer does not arrive.
type FailureAction = Box<dyn FnOnce() + Send>;

#[derive(Default)]
enum DeliveryState {
    #[default]
    Pending,
    /// The answer was made.
    Ready(FailureAction),
    Delivered,
    Failed,
}

impl ResponseDelivery {
    /// Returns the one that a request came with.
    pub(in crate::mcp) fn of(context: &RequestContext<RoleServer>) -> Option<Self> {
        let parts = context.extensions.get::<Parts>()?;
        parts.extensions.get::<Self>().cloned()
    }

    /// Says what to do if the answer, which was made, is not handed over.
    pub(in crate::mcp) fn on_failure(&self, action: impl FnOnce() + Send + 'static) {
        let failed = self.change(|state| match state {
            DeliveryState::Pending | DeliveryState::Ready(_) => {
                *state = DeliveryState::Ready(Box::new(action));
                None
            }
            DeliveryState::Failed => Some(action),
            DeliveryState::Delivered => None,
        });
        if let Some(action) = failed {
            action();
        }
    }

    /// Watches an answer on its way.
    pub(super) fn track(
        self,
        response: Response<BoxBody<Bytes, Infallible>>,
    ) -> Response<BoxBody<Bytes, Infallible>> {
        let guard = DeliveryGuard(self);
        response.map(|body| {
            let body = body.map_frame(move |frame| {
                if frame.data_ref().is_some_and(is_response) {
                    guard.0.change(|state| *state = DeliveryState::Delivered);
                }
                frame
            });
            body.boxed()
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut DeliveryState) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for ResponseDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseDelivery")
    }
}

fn is_response(frame: &Bytes) -> bool {
    let mut lines = frame.split(|byte| *byte == b'\n');
    lines.any(|line| line.starts_with(RESPONSE_PREFIX))
}

/// An answer on its way. Dropped before it was handed over, it has failed.
struct DeliveryGuard(ResponseDelivery);

impl Drop for DeliveryGuard {
    fn drop(&mut self) {
        let action = self.0.change(|state| match state {
            DeliveryState::Delivered => None,
            DeliveryState::Pending | DeliveryState::Ready(_) | DeliveryState::Failed => {
                match mem::replace(state, DeliveryState::Failed) {
                    DeliveryState::Ready(action) => Some(action),
                    DeliveryState::Pending | DeliveryState::Delivered | DeliveryState::Failed => {
                        None
                    }
                }
            }
        });
        if let Some(action) = action {
            action();
        }
    }
}
