//! Many clients over HTTP, each with a session of its own.
//!
//! Requests come from whoever serves the socket, and brings the check of who may come. Here: one path, no
//! web pages, names that this machine has, bodies and sessions that are bounded, and sessions that end when
//! nobody uses them.

mod delivery;
mod guests;

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService,
    session::{SessionManager, local::LocalSessionManager},
};
use tokio::time::timeout;

use self::guests::Guests;
pub(super) use self::{delivery::Delivery, guests::Visitor};
use super::server::{Door, Server, Tools};

/// Largest request: what a file of a few MiB takes as a JSON string.
const MAX_BODY_BYTES: usize = 16 << 20;
/// How long a session lives that nobody uses. Longer than the longest call.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// How long a request and the head of its answer may take. What a call says comes behind that.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a session that runs nothing may take to end.
const ROOM_TIMEOUT: Duration = Duration::from_secs(5);
/// The header that names a session.
const SESSION: &str = "mcp-session-id";

/// Decides by the `Authorization` header of a request whether it is let in, or why not.
pub type Admit = Arc<dyn Fn(Option<&[u8]>) -> Result<(), String> + Send + Sync>;

/// Which requests are let in.
#[derive(Clone)]
pub struct HttpDoorOptions {
    /// Who may come.
    pub admit: Admit,
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
    admit: Admit,
    guests: Arc<Guests>,
    sessions: Arc<LocalSessionManager>,
    service: StreamableHttpService<Server, LocalSessionManager>,
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
        sessions.session_config.keep_alive = Some(IDLE);
        let mut config = StreamableHttpServerConfig::default()
            .with_max_request_body_bytes(MAX_BODY_BYTES)
            .enforce_origin_validation();
        config.allowed_hosts.extend(options.hosts);
        let servers = tools.clone();
        let server = move || Ok(servers.server(Door::Http));
        let sessions = Arc::new(sessions);
        Self {
            tools,
            admit: options.admit,
            guests: Arc::default(),
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
            return plain(StatusCode::NOT_FOUND, "MCP is at /mcp\n".to_owned());
        }
        let authorization = request.headers().get(header::AUTHORIZATION);
        if let Err(reason) = (self.admit)(authorization.map(HeaderValue::as_bytes)) {
            let mut response = plain(StatusCode::UNAUTHORIZED, reason);
            let bearer = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, bearer);
            return response;
        }
        // A client that has a session may go on; said here, since the library would call it our fault.
        let guest = request.headers().get(SESSION);
        let is_new = guest.is_none() && request.method() == Method::POST;
        if let Some(name) = guest.and_then(|name| name.to_str().ok()) {
            self.guests.seen(name);
        }
        if is_new && !self.has_room().await {
            let text = "too many sessions\n".to_owned();
            let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, text);
            let seconds = HeaderValue::from_static("60");
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
            return response;
        }
        let ends_session = request.method() == Method::DELETE;
        let delivery = Delivery::default();
        if request.method() == Method::POST {
            request.extensions_mut().insert(delivery.clone());
        }
        let visitor = Visitor::default();
        if is_new {
            request.extensions_mut().insert(visitor.clone());
        }
        let answered = timeout(ANSWER_TIMEOUT, self.service.handle(request)).await;
        let mut response =
            answered.unwrap_or_else(|_| plain(StatusCode::REQUEST_TIMEOUT, String::new()));
        let named = response.headers().get(SESSION);
        if let (true, Some(name)) = (is_new, named.and_then(|name| name.to_str().ok())) {
            self.guests.come(name, &visitor);
        }
        // Clients take 202 for a session that has not ended.
        if ends_session && response.status() == StatusCode::ACCEPTED {
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        delivery.watch(response)
    }

    /// Tells whether one more session may begin. If there are too many, the one that was idle for the longest
    /// time ends for it: clients come and go without a word, and one that comes back begins anew.
    async fn has_room(&self) -> bool {
        if !self.tools.are_full() {
            return true;
        }
        let Some(name) = self.guests.take_idlest() else {
            return false;
        };
        tracing::debug!(session = name, "idle session ends to make room");
        if let Err(error) = self.sessions.close_session(&name.into()).await {
            tracing::warn!(%error, "idle session was not ended");
        }
        timeout(ROOM_TIMEOUT, self.tools.room()).await.is_ok()
    }

    /// Ends every session and what runs in it.
    pub async fn close(&self) {
        self.service.config.cancellation_token.cancel();
        self.tools.shut_down().await;
    }
}

fn plain(status: StatusCode, text: String) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(Bytes::from(text)).boxed());
    *response.status_mut() = status;
    response
}
