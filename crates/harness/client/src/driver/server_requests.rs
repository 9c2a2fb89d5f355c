//! Server requests: decisions about the network of a process that the server asks this client for.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use exec_env::environment::{CommandNetwork, NetworkPolicyHook};
use exec_wire::{
    error::{ErrorCode, RpcError},
    message::{RequestId, RpcRequest, decode_params},
    method::NETWORK_POLICY_REQUEST,
    network::{NetworkDecision, PolicyRequest, PolicyResponse},
    outgoing_message::OutgoingMessage,
};
use tokio::{
    task::{self, JoinSet},
    time::timeout,
};

use super::session_processes::SessionProcesses;

/// Maximum number of pending requests, as in the stock client. Further requests are denied.
const MAX_PENDING_REQUESTS: usize = 256;
/// Maximum number of unsent immediate responses. A server that sends more without reading gets no
/// response.
const MAX_UNSENT_RESPONSES: usize = 4096;

/// Pending server requests. Dropping this cancels them.
#[derive(Default)]
pub(super) struct ServerRequests {
    tasks: JoinSet<NetworkDecision>,
    ids: BTreeMap<task::Id, RequestId>,
    /// Immediate responses since the last flush.
    unsent: usize,
}

impl ServerRequests {
    /// Handles a server request. Returns the response if it is immediate.
    pub(super) fn handle_request(
        &mut self,
        request: &RpcRequest<'_>,
        processes: &SessionProcesses,
    ) -> Option<OutgoingMessage> {
        let policy_request = match decode_policy_request(request) {
            Ok(policy_request) => policy_request,
            Err(refusal) => return self.respond_now(refusal),
        };
        let process = processes.find(&policy_request.process_id);
        if let Some(process) = process
            && let Some(NetworkHook { watcher, budget }) = process.network_hook()
            && let Some(budget) = *budget
            && self.ids.len() < MAX_PENDING_REQUESTS
        {
            let watcher = Arc::clone(watcher);
            let task = self.tasks.spawn(async move {
                let decided = timeout(budget, watcher.decide(policy_request.request)).await;
                decided.unwrap_or_else(|_| default_denial())
            });
            self.ids.insert(task.id(), request.id.clone());
            return None;
        }
        self.respond_now(policy_response(&request.id, default_denial()))
    }

    fn respond_now(&mut self, answer: OutgoingMessage) -> Option<OutgoingMessage> {
        self.unsent += 1;
        (self.unsent <= MAX_UNSENT_RESPONSES).then_some(answer)
    }

    /// Records that all responses were flushed.
    pub(super) fn handle_flushed(&mut self) {
        self.unsent = 0;
    }

    /// Returns whether no request is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Waits for the next response. Cancel-safe.
    pub(super) async fn next_response(&mut self) -> Option<OutgoingMessage> {
        let (task, decision) = match self.tasks.join_next_with_id().await? {
            Ok((task, decision)) => (task, decision),
            // The hook panicked, which must not count as consent.
            Err(error) => (error.id(), default_denial()),
        };
        let id = self.ids.remove(&task)?;
        Some(policy_response(&id, decision))
    }
}

/// The network policy hook of one process.
#[derive(Clone, Debug)]
pub(crate) struct NetworkHook {
    pub(super) watcher: Arc<dyn NetworkPolicyHook>,
    /// Time limit of a decision. Absent: the server was not asked to request decisions.
    budget: Option<Duration>,
}

impl NetworkHook {
    /// Returns the hook of a command's network, if it has one.
    pub(crate) fn new(network: &CommandNetwork) -> Option<Self> {
        let watcher = Arc::clone(network.policy_hook.as_ref()?);
        let proxy = network.proxy.as_ref();
        let budget = proxy.and_then(|proxy| proxy.policy_decision_timeout_ms);
        Some(Self {
            watcher,
            budget: budget.map(Duration::from_millis),
        })
    }
}

impl fmt::Debug for ServerRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerRequests")
            .field("ids", &self.ids)
            .finish_non_exhaustive()
    }
}

/// Decodes a policy request. Returns the error response for anything else.
pub(crate) fn decode_policy_request(
    request: &RpcRequest<'_>,
) -> Result<PolicyRequest, OutgoingMessage> {
    let refuse = |error| OutgoingMessage::error(&request.id, &error);
    if request.method != NETWORK_POLICY_REQUEST {
        let message = format!("this client does not implement `{}`", request.method);
        return Err(refuse(RpcError::new(ErrorCode::METHOD_NOT_FOUND, message)));
    }
    decode_params(request.params)
        .map_err(|error| refuse(RpcError::invalid_params(error.to_string())))
}

/// Creates the response to a policy request.
pub(crate) fn policy_response(id: &RequestId, decision: NetworkDecision) -> OutgoingMessage {
    OutgoingMessage::result(id, &PolicyResponse { decision })
}

/// Returns the decision for requests that no hook decides.
pub(crate) fn default_denial() -> NetworkDecision {
    NetworkDecision::Deny {
        reason: "not_allowed".to_owned(),
    }
}
