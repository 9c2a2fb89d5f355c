//! Requests from the server to a client: `network/policyRequest`, which asks whether a process may
//! connect to a host. A [`ClientNetworkWatcher`] asks for the decisions about one process and
//! notifies its client of them; [`ServerRequests`] tracks the pending requests of one connection.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use exec_core::peer::PendingCalls;
use exec_env::environment::NetworkPolicyHook;
use exec_wire::{
    id::ProcessId,
    message::{RequestId, RpcMessage},
    method::notification,
    network::{NetworkDecision, NetworkDestination, PolicyDecision, PolicyRequest, PolicyResponse},
    outgoing_message::OutgoingMessage,
};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

use crate::{
    metrics::{PolicyDecisionKind, ServiceMetrics},
    request_guard::truncate_for_log,
    send_queue::SendQueue,
    session::Session,
};

/// Time granted beyond the client's own decision timeout, as in the stock server.
const DECISION_GRACE: Duration = Duration::from_secs(5);

/// Asks and notifies the client of one process. Keeps neither session nor connection alive.
#[derive(Debug)]
pub(crate) struct ClientNetworkWatcher {
    process_id: ProcessId,
    client: PolicyClient,
    /// Decision timeout of the client. The client is not asked if it is absent.
    decision_timeout: Option<Duration>,
    ended: watch::Sender<bool>,
    metrics: Arc<ServiceMetrics>,
}

/// How to reach the client of a process.
#[derive(Clone, Debug)]
pub(crate) enum PolicyClient {
    /// Through the connection that the session is attached to.
    Session(Weak<Session>),
    /// Through the connection that started the process.
    Connection(Weak<SendQueue>),
}

impl PolicyClient {
    fn send_queue(&self) -> Option<Arc<SendQueue>> {
        match self {
            Self::Session(session) => session.upgrade()?.send_queue(),
            Self::Connection(send_queue) => send_queue.upgrade(),
        }
    }
}

impl ClientNetworkWatcher {
    pub(crate) fn new(
        process_id: ProcessId,
        client: PolicyClient,
        decision_timeout: Option<Duration>,
        metrics: Arc<ServiceMetrics>,
    ) -> Self {
        Self {
            process_id,
            client,
            decision_timeout,
            ended: watch::Sender::new(false),
            metrics,
        }
    }

    /// Denies all pending and future requests because the process has ended.
    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
    }
}

impl NetworkPolicyHook for ClientNetworkWatcher {
    fn decide(&self, destination: NetworkDestination) -> BoxFuture<'static, NetworkDecision> {
        let Some(decision_timeout) = self.decision_timeout else {
            return ready(default_denial()).boxed();
        };
        let (client, mut ended) = (self.client.clone(), self.ended.subscribe());
        let request = PolicyRequest {
            process_id: self.process_id.clone(),
            request: destination,
        };
        let limit = decision_timeout.saturating_add(DECISION_GRACE);
        async move {
            let response = async {
                let send_queue = client.send_queue()?;
                send_queue.request_decision(&request).await
            };
            let decision = tokio::select! {
                decision = timeout(limit, response) => decision.ok().flatten(),
                // Also resolves when the watcher is dropped.
                _ = ended.wait_for(|ended| *ended) => None,
            };
            decision.unwrap_or_else(default_denial)
        }
        .boxed()
    }

    fn record(&self, decision: PolicyDecision) {
        let kind = PolicyDecisionKind::parse(&decision.decision);
        if let Some(kind) = kind {
            self.metrics.network_decisions.count(kind);
        }
        if kind == Some(PolicyDecisionKind::Deny) {
            tracing::info!(
                target: "exec_service::process",
                process_id = truncate_for_log(self.process_id.as_str()),
                host = truncate_for_log(&decision.host),
                port = decision.port,
                "network access denied"
            );
        }
        if let Some(send_queue) = self.client.send_queue() {
            let decision = PolicyDecision {
                process_id: self.process_id.clone(),
                ..decision
            };
            let method = notification::NETWORK_POLICY_DECISION;
            send_queue.send_lossy(OutgoingMessage::notification(method, &decision));
        }
    }
}

/// Decision without a response from the client.
fn default_denial() -> NetworkDecision {
    NetworkDecision::Deny {
        reason: "not_allowed".to_owned(),
    }
}

/// Maximum number of pending requests of one connection, as in the stock server.
const MAX_PENDING: usize = 256;
/// Maximum length of a denial reason, as in the stock server.
const MAX_REASON_BYTES: usize = 1024;

/// Pending server requests of one connection.
#[derive(Debug)]
pub(crate) struct ServerRequests(Mutex<State>);

#[derive(Debug)]
struct State {
    calls: PendingCalls<oneshot::Sender<NetworkDecision>>,
    /// The connection ended.
    closed: bool,
}

impl Default for ServerRequests {
    fn default() -> Self {
        Self(Mutex::new(State {
            calls: PendingCalls::new(MAX_PENDING),
            closed: false,
        }))
    }
}

impl ServerRequests {
    /// Registers a new request. Returns `None` if too many are pending or the connection ended.
    pub(crate) fn register(self: &Arc<Self>) -> Option<PendingServerRequest> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        let (reply, response) = oneshot::channel();
        let id = state.calls.register(reply).ok()?;
        Some(PendingServerRequest {
            id,
            response,
            requests: Arc::clone(self),
        })
    }

    /// Completes the pending request of a response. Returns `false` for an unsolicited response.
    pub(crate) fn handle_response(&self, response: RpcMessage<'_>) -> bool {
        let Some(response) = self.lock().calls.handle_response(response) else {
            return false;
        };
        let decoded = response.result.ok().and_then(|result| {
            let response: PolicyResponse = serde_json::from_str(result.get()).ok()?;
            is_acceptable(&response.decision).then_some(response.decision)
        });
        // Dropping the sender completes the request without a decision.
        if let Some(decision) = decoded {
            drop(response.waiter.send(decision));
        }
        true
    }

    /// Fails all pending requests and rejects new ones.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        drop(state.calls.drain());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that waits for its response. Dropping it discards the response.
#[derive(Debug)]
pub(crate) struct PendingServerRequest {
    pub(crate) id: RequestId,
    response: oneshot::Receiver<NetworkDecision>,
    requests: Arc<ServerRequests>,
}

impl PendingServerRequest {
    /// Waits for the decision. Returns `None` if the response is invalid or never comes.
    pub(crate) async fn decision(&mut self) -> Option<NetworkDecision> {
        (&mut self.response).await.ok()
    }
}

impl Drop for PendingServerRequest {
    fn drop(&mut self) {
        self.requests.lock().calls.cancel(&self.id);
    }
}

/// Returns whether a decision is valid. The proxy shows its reason to the process, so control
/// characters and long texts are rejected.
fn is_acceptable(decision: &NetworkDecision) -> bool {
    match decision {
        NetworkDecision::Allow => true,
        NetworkDecision::Deny { reason } | NetworkDecision::Ask { reason } => {
            reason.len() <= MAX_REASON_BYTES && !reason.contains(char::is_control)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn decision_for(
        requests: &Arc<ServerRequests>,
        response: &str,
    ) -> Option<NetworkDecision> {
        let mut pending = requests.register().unwrap();
        let text = format!(r#"{{"id":{},{response}}}"#, pending.id);
        assert!(requests.handle_response(RpcMessage::decode(text.as_bytes()).unwrap()));
        pending.decision().await
    }

    fn result(kind: &str, reason: &str) -> String {
        format!(r#""result":{{"decision":{{"type":"{kind}","reason":"{reason}"}}}}"#)
    }

    #[tokio::test]
    async fn valid_decisions_are_accepted() {
        let requests = Arc::default();
        let allow = decision_for(&requests, r#""result":{"decision":{"type":"allow"}}"#).await;
        assert_eq!(allow, Some(NetworkDecision::Allow));
        let longest = "r".repeat(1024);
        for kind in ["deny", "ask"] {
            for reason in ["", "not on the list", &longest] {
                let reason = reason.to_owned();
                let decision = decision_for(&requests, &result(kind, &reason)).await;
                let expected = match kind {
                    "deny" => NetworkDecision::Deny { reason },
                    _ => NetworkDecision::Ask { reason },
                };
                assert_eq!(decision, Some(expected));
            }
        }
    }

    #[tokio::test]
    async fn invalid_decision_is_ignored() {
        let requests = Arc::default();
        for response in [
            r#""error":{"code":-32601,"message":"no"}"#,
            r#""result":null"#,
            r#""result":{"decision":"allow"}"#,
            r#""result":{"decision":{"type":"perhaps"}}"#,
            r#""result":{"decision":{"type":"deny"}}"#,
            &result("deny", &"r".repeat(1025)),
            &result("deny", r"two\nlines"),
            &result("ask", r"\u007f"),
        ] {
            assert_eq!(decision_for(&requests, response).await, None, "{response}");
        }
    }

    #[tokio::test]
    async fn requests_are_numbered_limited_and_closed_with_the_connection() {
        let requests: Arc<ServerRequests> = Arc::default();
        let mut pending: Vec<_> = (0..MAX_PENDING)
            .map(|_| requests.register().unwrap())
            .collect();
        assert_eq!(pending[0].id, RequestId::Number(1));
        assert!(requests.register().is_none());
        let dropped = pending.pop().unwrap().id.to_string();
        let text = format!(r#"{{"id":{dropped},"result":{{}}}}"#);
        let late = RpcMessage::decode(text.as_bytes()).unwrap();
        assert!(!requests.handle_response(late), "the request was dropped");
        assert_eq!(requests.register().unwrap().id, RequestId::Number(257));
        requests.close();
        assert_eq!(pending[0].decision().await, None);
        drop(pending);
        assert!(requests.register().is_none());
    }
}
