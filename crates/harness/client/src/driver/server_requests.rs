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

use super::session_processes::Processes;

/// Questions that may be unanswered; one more is denied. As the stock client.
const MAX_QUESTIONS: usize = 256;
/// Answers that may wait to be sent. A server that asks more and does not read gets no more.
const MAX_UNSENT: usize = 4096;

/// Questions that somebody thinks about. They are given up with their value.
#[derive(Default)]
pub(super) struct Questions {
    tasks: JoinSet<Decision>,
    ids: BTreeMap<task::Id, RequestId>,
    /// Answers that were given at once since the last flush.
    unsent: usize,
}

impl Questions {
    /// Takes a question. Returns the answer if there is one at once.
    pub(super) fn handle_request(
        &mut self,
        request: &Request<'_>,
        processes: &Processes,
    ) -> Option<Outgoing> {
        let asked = match decode(request) {
            Ok(asked) => asked,
            Err(refusal) => return self.at_once(refusal),
        };
        let process = processes.find(&asked.process_id);
        let decider = process.and_then(|process| process.watch().and_then(Watch::decider));
        match decider {
            Some(decider) if self.ids.len() < MAX_QUESTIONS => {
                let task = self.tasks.spawn(decider.decide(asked.request));
                self.ids.insert(task.id(), request.id.clone());
                None
            }
            Some(_) | None => self.at_once(answer(&request.id, not_allowed())),
        }
    }

    fn at_once(&mut self, answer: Outgoing) -> Option<Outgoing> {
        self.unsent += 1;
        (self.unsent <= MAX_UNSENT).then_some(answer)
    }

    /// All that was said is sent.
    pub(super) fn handle_flushed(&mut self) {
        self.unsent = 0;
    }

    /// Tells whether there is anything to wait for.
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Waits for the next answer. Cancelling loses none.
    pub(super) async fn next_answer(&mut self) -> Option<Outgoing> {
        let (task, decision) = match self.tasks.join_next_with_id().await? {
            Ok((task, decision)) => (task, decision),
            // Whoever was to decide has panicked, which is no consent.
            Err(error) => (error.id(), not_allowed()),
        };
        let id = self.ids.remove(&task)?;
        Some(answer(&id, decision))
    }
}

/// Who watches the network of one process.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    watcher: Arc<dyn NetworkWatcher>,
    /// How long a decision may take. Absent: the server was not told to ask.
    budget: Option<Duration>,
}

impl Watch {
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

    fn decider(&self) -> Option<Decider> {
        Some(Decider {
            watcher: Arc::clone(&self.watcher),
            budget: self.budget?,
        })
    }
}

struct Decider {
    watcher: Arc<dyn NetworkWatcher>,
    budget: Duration,
}

impl Decider {
    async fn decide(self, destination: Destination) -> Decision {
        let decision = self.watcher.decide(destination);
        let decided = timeout(self.budget, decision).await;
        decided.unwrap_or_else(|_| not_allowed())
    }
}

impl fmt::Debug for Questions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Questions")
            .field("ids", &self.ids)
            .finish_non_exhaustive()
    }
}

/// Decodes a question about the network of a process. Anything else is refused by the answer that
/// is returned.
pub(crate) fn decode(request: &Request<'_>) -> Result<PolicyRequest, Outgoing> {
    let refuse = |error| Outgoing::error(&request.id, &error);
    if request.method != NETWORK_POLICY_REQUEST {
        let message = format!("this client does not implement `{}`", request.method);
        return Err(refuse(RpcError::new(ErrorCode::METHOD_NOT_FOUND, message)));
    }
    decode_params(request.params)
        .map_err(|error| refuse(RpcError::invalid_params(error.to_string())))
}

/// Answers a question.
pub(crate) fn answer(id: &RequestId, decision: Decision) -> Outgoing {
    Outgoing::result(id, &PolicyAnswer { decision })
}

/// What is decided when nobody decides.
pub(crate) fn not_allowed() -> Decision {
    Decision::Deny {
        reason: "not_allowed".to_owned(),
    }
}
