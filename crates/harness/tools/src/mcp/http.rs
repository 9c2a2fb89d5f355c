//! MCP over HTTP for many clients: each has its own session, or sends stateless requests.
//!
//! The caller serves the socket and provides authentication. This module serves one path, refuses
//! web pages and unknown hosts, bounds bodies and sessions, and ends idle sessions.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use rmcp::{
    RoleServer,
    model::ProtocolVersion,
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService,
        session::{SessionManager, local::LocalSessionManager},
    },
};
use tokio::time::{Instant, timeout};

use super::{McpServer, McpTools, session::McpSession};

/// Maximum request size: fits a file of a few MiB as a JSON string.
const MAX_BODY_BYTES: usize = 16 << 20;
/// How long a session may be idle. Longer than the longest call.
const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Timeout for a request and the head of its response. The output of a call streams after that.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an evicted idle session may take to end.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Header with the session ID.
const SESSION_HEADER: &str = "mcp-session-id";

/// Checks the `Authorization` header of a request. The error is the reason for a refusal.
pub type AuthCheck = Arc<dyn Fn(Option<&[u8]>) -> Result<(), String> + Send + Sync>;

/// Access options of the HTTP endpoint.
#[derive(Clone)]
pub struct McpHttpOptions {
    /// Authentication of requests.
    pub authenticate: AuthCheck,
    /// Host names that clients may use besides loopback: `host` or `host:port`. Protects against
    /// DNS rebinding.
    pub hosts: Vec<String>,
}

impl fmt::Debug for McpHttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpHttpOptions")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// Serves requests to `/mcp`.
#[derive(Clone)]
pub struct McpHttpEndpoint {
    tools: McpTools,
    admit: AuthCheck,
    http_sessions: Arc<HttpSessions>,
    sessions: Arc<LocalSessionManager>,
    service: StreamableHttpService<McpServer, LocalSessionManager>,
}

impl fmt::Debug for McpHttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpHttpEndpoint").finish_non_exhaustive()
    }
}

impl McpHttpEndpoint {
    /// The served path.
    pub const PATH: &'static str = "/mcp";

    /// Creates the endpoint.
    pub fn new(tools: McpTools, options: McpHttpOptions) -> Self {
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(SESSION_IDLE_TIMEOUT);
        let mut config = StreamableHttpServerConfig::default()
            .with_max_request_body_bytes(MAX_BODY_BYTES)
            .enforce_origin_validation();
        config.allowed_hosts.extend(options.hosts);
        let servers = tools.clone();
        let server = move || Ok(servers.server());
        let sessions = Arc::new(sessions);
        Self {
            tools,
            admit: options.authenticate,
            http_sessions: Arc::default(),
            sessions: sessions.clone(),
            service: StreamableHttpService::new(server, sessions, config),
        }
    }

    /// Handles one request.
    pub async fn handle<B>(&self, mut request: Request<B>) -> Response<BoxBody<Bytes, Infallible>>
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
        // Existing sessions continue. The limit is checked here because the library would report it
        // as an internal error.
        let session_entry = request.headers().get(SESSION_HEADER);
        let is_new = session_entry.is_none()
            && request.method() == Method::POST
            && !is_stateless(request.headers());
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
        // Clients interpret 202 as a session that has not ended.
        if ends_session && response.status() == StatusCode::ACCEPTED {
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        response
    }

    /// Returns whether another session may start. At the limit, evicts the session that has been
    /// idle for the longest time: clients often leave without ending their session, and can open a
    /// new one.
    async fn reserve_session(&self) -> bool {
        let registry = &self.tools.shared.registry;
        if !registry.is_full() {
            return true;
        }
        let Some(name) = self.http_sessions.take_least_recently_used() else {
            return false;
        };
        tracing::debug!(session = name, "evicting an idle session");
        if let Err(error) = self.sessions.close_session(&name.into()).await {
            tracing::warn!(%error, "failed to close an idle session");
        }
        let freed = timeout(EVICTION_TIMEOUT, registry.wait_for_slot());
        freed.await.is_ok()
    }

    /// Ends every session and its commands.
    pub async fn close(&self) {
        self.service.config.cancellation_token.cancel();
        self.tools.shut_down().await;
    }
}

/// Returns whether a request is stateless, so that it needs no session. The library checks that the
/// headers agree with the body.
fn is_stateless(headers: &HeaderMap) -> bool {
    let header = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let version = header("mcp-protocol-version");
    let is_modern =
        version.is_some_and(|version| version >= ProtocolVersion::V_2026_07_28.as_str());
    is_modern && header("mcp-method").is_some_and(|method| method != "initialize")
}

fn text_response(status: StatusCode, text: String) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(Bytes::from(text)).boxed());
    *response.status_mut() = status;
    response
}

/// Sessions by the ID that the library assigned. Bounded by the number of sessions.
#[derive(Debug, Default)]
pub(super) struct HttpSessions(Mutex<BTreeMap<String, HttpSession>>);

#[derive(Debug)]
struct HttpSession {
    session: Weak<McpSession>,
    used: Instant,
}

/// A session that does not have an ID yet. Travels with the first request.
#[derive(Clone, Debug, Default)]
pub(in crate::mcp) struct PendingSession(Arc<OnceLock<Weak<McpSession>>>);

impl PendingSession {
    /// Binds the session that a first request started.
    pub(in crate::mcp) fn bind(context: &RequestContext<RoleServer>, session: &Arc<McpSession>) {
        let parts = context.extensions.get::<Parts>();
        if let Some(Self(bound)) = parts.and_then(|parts| parts.extensions.get::<Self>()) {
            bound.get_or_init(|| Arc::downgrade(session));
        }
    }
}

impl HttpSessions {
    /// Adds a new session under its ID.
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

    /// Marks a session as recently used.
    pub(super) fn touch(&self, name: &str) {
        if let Some(session_entry) = self.lock().get_mut(name) {
            session_entry.used = Instant::now();
        }
    }

    /// Removes and returns the session that has been idle for the longest time. A session with a
    /// pending call or a running command is not idle.
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
