//! Server requests: decisions about the network of a process that the server asks this client for.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use exec_env::network::{Network, NetworkWatcher};
use exec_wire::{
    error::{ErrorCode, RpcError},
    message::{Request, RequestId, decode_params},
    method::NETWORK_POLICY_REQUEST,
    network::{Decision, Destination, PolicyAnswer, PolicyRequest},
    outgoing::Outgoing,
};
use tokio::{
    task::{self, JoinSet},
    time::timeout,
};

use super::session_processes::SessionProcesses;

/// Questions that may be unanswered; one more is denied. As the stock client.
const MAX_PENDING_REQUESTS: usize = 256;
/// Answers that may wait to be sent. A server that asks more and does not read gets no more.
const MAX_UNSENT_RESPONSES: usize = 4096;

/// Questions that somebody thinks about. They are given up with their value.
#[derive(Default)]
pub(super) struct ServerRequests {
    tasks: JoinSet<Decision>,
    ids: BTreeMap<task::Id, RequestId>,
    /// Answers that were given at once since the last flush.
    unsent: usize,
}

impl ServerRequests {
    /// Takes a question. Returns the answer if there is one at once.
    pub(super) fn handle_request(
        &mut self,
        request: &Request<'_>,
        processes: &SessionProcesses,
    ) -> Option<Outgoing> {
        let policy_request = match decode_policy_request(request) {
            Ok(policy_request) => policy_request,
            Err(refusal) => return self.respond_now(refusal),
        };
        let process = processes.find(&policy_request.process_id);
        let policy_decider = process
            .and_then(|process| process.network_hook().and_then(NetworkHook::policy_decider));
        match policy_decider {
            Some(policy_decider) if self.ids.len() < MAX_PENDING_REQUESTS => {
                let task = self
                    .tasks
                    .spawn(policy_decider.decide(policy_request.request));
                self.ids.insert(task.id(), request.id.clone());
                None
            }
            Some(_) | None => self.respond_now(policy_response(&request.id, default_denial())),
        }
    }

    fn respond_now(&mut self, answer: Outgoing) -> Option<Outgoing> {
        self.unsent += 1;
        (self.unsent <= MAX_UNSENT_RESPONSES).then_some(answer)
    }

    /// All that was said is sent.
    pub(super) fn handle_flushed(&mut self) {
        self.unsent = 0;
    }

    /// Returns whether there is anything to wait for.
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Waits for the next answer. Cancelling loses none.
    pub(super) async fn next_response(&mut self) -> Option<Outgoing> {
        let (task, decision) = match self.tasks.join_next_with_id().await? {
            Ok((task, decision)) => (task, decision),
            // Whoever was to decide has panicked, which is no consent.
            Err(error) => (error.id(), default_denial()),
        };
        let id = self.ids.remove(&task)?;
        Some(policy_response(&id, decision))
    }
}

/// Who watches the network of one process.
#[derive(Clone, Debug)]
pub(crate) struct NetworkHook {
    watcher: Arc<dyn NetworkWatcher>,
    /// How long a decision may take. Absent: the server was not told to ask.
    budget: Option<Duration>,
}

impl NetworkHook {
    /// Returns who watches the network of a command, if anybody does.
    pub(crate) fn new(network: &Network) -> Option<Self> {
        let watcher = Arc::clone(network.watcher.as_ref()?);
        let proxy = network.proxy.as_ref();
        let budget = proxy.and_then(|proxy| proxy.policy_decision_timeout_ms);
        Some(Self {
            watcher,
            budget: budget.map(Duration::from_millis),
        })
    }

    pub(super) fn watcher(&self) -> &dyn NetworkWatcher {
        &*self.watcher
    }

    fn policy_decider(&self) -> Option<PolicyDecider> {
        Some(PolicyDecider {
            watcher: Arc::clone(&self.watcher),
            budget: self.budget?,
        })
    }
}

struct PolicyDecider {
    watcher: Arc<dyn NetworkWatcher>,
    budget: Duration,
}

impl PolicyDecider {
    async fn decide(self, destination: Destination) -> Decision {
        let decision = self.watcher.decide(destination);
        let decided = timeout(self.budget, decision).await;
        decided.unwrap_or_else(|_| default_denial())
    }
}

impl fmt::Debug for ServerRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerRequests")
            .field("ids", &self.ids)
            .finish_non_exhaustive()
    }
}

/// Decodes a question about the network of a process. Anything else is refused by the answer that
/// is returned.
pub(crate) fn decode_policy_request(request: &Request<'_>) -> Result<PolicyRequest, Outgoing> {
    let refuse = |error| Outgoing::error(&request.id, &error);
    if request.method != NETWORK_POLICY_REQUEST {
        let message = format!("this client does not implement `{}`", request.method);
        return Err(refuse(RpcError::new(ErrorCode::METHOD_NOT_FOUND, message)));
    }
    decode_params(request.params)
        .map_err(|error| refuse(RpcError::invalid_params(error.to_string())))
}

/// Answers a question.
pub(crate) fn policy_response(id: &RequestId, decision: Decision) -> Outgoing {
    Outgoing::result(id, &PolicyAnswer { decision })
}

/// What is decided when nobody decides.
pub(crate) fn default_denial() -> Decision {
    Decision::Deny {
        reason: "not_allowed".to_owned(),
    }
}
