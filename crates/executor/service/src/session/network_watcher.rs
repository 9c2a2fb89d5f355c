//! Who is asked, and told, about the network of one process: the client that has it.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use exec_env::network::NetworkWatcher;
use exec_wire::{
    id::ProcessId,
    method::notification,
    network::{Decision, Destination, PolicyDecision, PolicyRequest},
    outgoing::Outgoing,
};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::{sync::watch, time::timeout};

use super::Session;
use crate::{
    meters::{Meters, Ruling},
    request_guard::shown,
    send_queue::Outbox,
};

/// How much longer than its own budget a client may take to answer: as the stock server.
const LATE: Duration = Duration::from_secs(5);

/// Asks and tells the client of one process. Keeps neither session nor connection alive.
#[derive(Debug)]
pub(crate) struct Watcher {
    process_id: ProcessId,
    client: Client,
    /// The client's budget for a decision. Absent: it is not asked.
    budget: Option<Duration>,
    over: watch::Sender<bool>,
    meters: Arc<Meters>,
}

/// Where the client of a process is.
#[derive(Clone, Debug)]
pub(crate) enum Client {
    /// On whichever connection the session is attached to.
    OfSession(Weak<Session>),
    /// On the connection that started the process.
    OfConnection(Weak<Outbox>),
}

impl Client {
    fn outbox(&self) -> Option<Arc<Outbox>> {
        match self {
            Self::OfSession(session) => session.upgrade()?.outbox(),
            Self::OfConnection(outbox) => outbox.upgrade(),
        }
    }
}

impl Watcher {
    pub(crate) fn new(
        process_id: ProcessId,
        client: Client,
        budget: Option<Duration>,
        meters: Arc<Meters>,
    ) -> Self {
        Self {
            process_id,
            client,
            budget,
            over: watch::Sender::new(false),
            meters,
        }
    }

    /// The process is over: what is asked for it is denied.
    pub(crate) fn end(&self) {
        self.over.send_replace(true);
    }
}

impl NetworkWatcher for Watcher {
    fn decide(&self, destination: Destination) -> BoxFuture<'static, Decision> {
        let Some(budget) = self.budget else {
            return ready(not_allowed()).boxed();
        };
        let (client, mut over) = (self.client.clone(), self.over.subscribe());
        let request = PolicyRequest {
            process_id: self.process_id.clone(),
            request: destination,
        };
        async move {
            let asked = async {
                let outbox = client.outbox()?;
                outbox.ask(&request).await
            };
            let answer = tokio::select! {
                answer = timeout(budget.saturating_add(LATE), asked) => answer.ok().flatten(),
                // It ends, too, when nobody has the process any more.
                _ = over.wait_for(|over| *over) => None,
            };
            answer.unwrap_or_else(not_allowed)
        }
        .boxed()
    }

    fn record(&self, decision: PolicyDecision) {
        let ruling = Ruling::parse(&decision.decision);
        if let Some(ruling) = ruling {
            self.meters.network_decisions.count(ruling);
        }
        if ruling == Some(Ruling::Deny) {
            tracing::info!(
                target: "exec_service::process", process_id = shown(self.process_id.as_str()),
                host = shown(&decision.host), port = decision.port, "network access denied"
            );
        }
        if let Some(outbox) = self.client.outbox() {
            let decision = PolicyDecision {
                process_id: self.process_id.clone(),
                ..decision
            };
            let method = notification::NETWORK_POLICY_DECISION;
            outbox.offer(Outgoing::notification(method, &decision));
        }
    }
}

/// What silence means.
fn not_allowed() -> Decision {
    Decision::Deny {
        reason: "not_allowed".to_owned(),
    }
}
