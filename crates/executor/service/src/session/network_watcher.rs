//! Network policy of one process: asks the client for decisions and notifies it of them.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use exec_env::command::NetworkPolicyHook;
use exec_wire::{
    id::ProcessId,
    method::notification,
    network::{NetworkDecision, NetworkDestination, PolicyDecision, PolicyRequest},
    outgoing_message::OutgoingMessage,
};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::{sync::watch, time::timeout};

use super::Session;
use crate::{
    metrics::{PolicyDecisionKind, ServiceMetrics},
    request_guard::truncate_for_log,
    send_queue::SendQueue,
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
        let ruling = PolicyDecisionKind::parse(&decision.decision);
        if let Some(ruling) = ruling {
            self.metrics.network_decisions.count(ruling);
        }
        if ruling == Some(PolicyDecisionKind::Deny) {
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
