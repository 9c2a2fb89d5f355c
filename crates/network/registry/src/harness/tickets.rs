//! Tickets for one environment.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exec_relay::identity::{Identity, PublicKey};
use exec_transport::{
    connect::ConnectError,
    relay::harness::{Ticket, Tickets},
};
use futures_util::future::{BoxFuture, FutureExt};

use super::{TicketError, first::patiently};
use crate::{
    api::{Connected, EnvironmentId},
    delay::RegistryDelay,
    registry::{Registry, RegistryError},
};

/// Gets tickets for one environment, for one harness.
#[derive(Debug)]
pub struct RegistryTickets {
    registry: Registry,
    environment: EnvironmentId,
    identity: Arc<Identity>,
    executor: Mutex<Executor>,
}

/// What is known about the executor.
#[derive(Debug, Default)]
struct Executor {
    /// The key in the last ticket.
    last: Option<PublicKey>,
    /// The only key that is accepted, if there is a session.
    pinned: Option<PublicKey>,
}

impl RegistryTickets {
    /// Describes an environment and who wants to meet its executor.
    pub fn new(registry: Registry, environment: EnvironmentId, identity: Arc<Identity>) -> Self {
        Self {
            registry,
            environment,
            identity,
            executor: Mutex::default(),
        }
    }

    /// Takes note of a session that was made with the last ticket: from now on the executor of that
    /// ticket is the only one that is accepted.
    pub fn pin(&self) {
        let mut executor = self.executor();
        if let Some(last) = executor.last.clone() {
            executor.pinned = Some(last);
        }
    }

    /// Takes note of the session's end: any executor will do.
    pub fn unpin(&self) {
        self.executor().pinned = None;
    }

    /// Gets a ticket. Its members belong together and serve for one connection.
    ///
    /// # Errors
    /// When there is none; with a session, after one request.
    pub async fn ticket(&self) -> Result<Connected, TicketError> {
        let pinned = self.executor().pinned.clone();
        let ticket = self.ask(pinned.as_ref()).await?;
        if pinned.is_some_and(|pinned| pinned != ticket.executor_public_key) {
            return Err(TicketError::KeyChanged);
        }
        self.executor().last = Some(ticket.executor_public_key.clone());
        Ok(ticket)
    }

    /// Asks the registry. With a session, whoever calls paces whole attempts, of which this is a part.
    async fn ask(&self, pinned: Option<&PublicKey>) -> Result<Connected, RegistryError> {
        let key = self.identity.public_key();
        let ask = || self.registry.connect(&self.environment, key);
        match pinned {
            Some(_) => ask().await,
            None => patiently(&RegistryDelay::random(), ask).await,
        }
    }

    fn executor(&self) -> MutexGuard<'_, Executor> {
        // Nothing panics in between, and half a change is none.
        self.executor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tickets for RegistryTickets {
    fn fetch(&self) -> BoxFuture<'_, Result<Ticket, ConnectError>> {
        let fetch = async {
            let ticket = self.ticket().await?;
            Ok(Ticket {
                url: ticket.url.into_exposed(),
                environment_id: ticket.environment_id,
                registration_id: ticket.executor_registration_id,
                executor_key: ticket.executor_public_key,
                authorization: ticket.harness_key_authorization.into_exposed(),
            })
        };
        fetch.boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        credentials::{HarnessToken, Token},
        http::{
            BaseUrl,
            tests::{Server, answer, http},
        },
    };

    const OFFLINE: &str = r#"{"error":{"code":"environment_offline","message":"off"}}"#;

    fn tickets(server: &Server) -> (RegistryTickets, Arc<Identity>) {
        let token = HarnessToken::new(Token::new("t").unwrap(), None);
        let base = BaseUrl::parse(&server.url()).unwrap();
        let registry = Registry::new(base, Arc::new(token), http()).unwrap();
        let identity = Arc::new(Identity::generate());
        let environment = EnvironmentId::new("env-1").unwrap();
        let tickets = RegistryTickets::new(registry, environment, Arc::clone(&identity));
        (tickets, identity)
    }

    fn bundle(number: usize, key: &PublicKey) -> String {
        let bundle = json!({
            "environment_id": "env-1",
            "url": format!("ws://127.0.0.1:1/?sig={number}"),
            "security_profile": "noise_hybrid_ik_v1",
            "executor_registration_id": format!("reg-{number}"),
            "executor_public_key": key,
            "harness_key_authorization": format!("auth-{number}"),
        });
        bundle.to_string()
    }

    #[tokio::test]
    async fn each_ticket_is_one_answer_and_for_one_key() {
        let executor = Identity::generate().public_key().clone();
        let key = executor.clone();
        let server = Server::start(move |number, _| answer(200, bundle(number, &key))).await;
        let (tickets, identity) = tickets(&server);
        for number in 0..2 {
            let ticket = tickets.fetch().await.unwrap();
            let expected = Ticket {
                url: format!("ws://127.0.0.1:1/?sig={number}"),
                environment_id: "env-1".to_owned(),
                registration_id: format!("reg-{number}"),
                executor_key: executor.clone(),
                authorization: format!("auth-{number}"),
            };
            assert_eq!(ticket, expected);
        }
        let asked = json!({"harness_public_key": identity.public_key()});
        assert!(server.seen().iter().all(|seen| seen.json() == asked));
    }

    #[tokio::test]
    async fn with_a_session_no_other_executor_is_accepted() {
        let keys: Vec<_> = (0..4)
            .map(|_| Identity::generate().public_key().clone())
            .collect();
        // Before the session there is another executor, and after it two more.
        let order = [0, 1, 1, 2, 1, 3];
        let answers = keys.clone();
        let server =
            Server::start(move |number, _| answer(200, bundle(number, &answers[order[number]])))
                .await;
        let (tickets, _) = tickets(&server);
        let key = async || Some(tickets.fetch().await.ok()?.executor_key);
        tickets.pin();
        assert_eq!(key().await.as_ref(), Some(&keys[0]));
        assert_eq!(key().await.as_ref(), Some(&keys[1]));
        tickets.pin();
        assert_eq!(key().await.as_ref(), Some(&keys[1]));
        let changed = tickets.fetch().await.unwrap_err();
        assert!(matches!(changed, ConnectError::ExecutorChanged));
        assert!(!changed.is_passing());
        // The one that was refused is not the last that was seen.
        tickets.pin();
        assert_eq!(key().await.as_ref(), Some(&keys[1]));
        tickets.unpin();
        assert_eq!(key().await.as_ref(), Some(&keys[3]));
    }

    #[tokio::test]
    async fn the_first_ticket_is_worth_waiting_for_and_later_ones_are_asked_for_once() {
        let key = Identity::generate().public_key().clone();
        let server = Server::start(move |number, _| match number {
            1 => answer(200, bundle(number, &key)),
            _ => answer(409, OFFLINE),
        })
        .await;
        let (tickets, _) = tickets(&server);
        let begun = Instant::now();
        tickets.fetch().await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(500));
        assert_eq!(server.seen().len(), 2);
        tickets.pin();
        let error = tickets.fetch().await.unwrap_err();
        assert!(error.is_passing());
        assert_eq!(server.seen().len(), 3);
    }

    #[tokio::test]
    async fn errors_tell_who_has_to_act() {
        use exec_transport::connect::Fault;
        let table = [
            (401, "", Fault::Caller, false),
            (403, "", Fault::Caller, false),
            (404, "", Fault::Peer, false),
            (409, "", Fault::Peer, false),
            (200, "{}", Fault::Peer, false),
        ];
        for (status, body, fault, passing) in table {
            let server = Server::start(move |_, _| answer(status, body)).await;
            let error = tickets(&server).0.fetch().await.unwrap_err();
            assert_eq!(
                (error.fault(), error.is_passing()),
                (fault, passing),
                "{status}"
            );
            assert_eq!(server.seen().len(), 1);
        }
        let key = Identity::generate().public_key().clone();
        let server = Server::start(move |number, _| match number {
            0 => answer(200, bundle(number, &key)),
            _ => answer(503, ""),
        })
        .await;
        let (tickets, _) = tickets(&server);
        tickets.fetch().await.unwrap();
        tickets.pin();
        let error = tickets.fetch().await.unwrap_err();
        assert_eq!((error.fault(), error.is_passing()), (Fault::Peer, true));
        drop(server);
        tokio::task::yield_now().await;
        let error = tickets.fetch().await.unwrap_err();
        assert_eq!(
            (error.fault(), error.is_passing()),
            (Fault::Transport, true)
        );
    }
}
