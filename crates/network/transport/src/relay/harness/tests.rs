//! Handshakes over a pipe, and links through a small relay on loopback.

mod handshakes;
mod links;
mod reconnect;
mod test_relay;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use exec_relay::identity::{NoiseIdentity, NoisePublicKey};
use exec_test_support::bounded_wait::within;
use exec_wire::outgoing_message::OutgoingMessage;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use self::test_relay::TestRelay;
use super::*;
use crate::{
    connect::{ConnectError, WebSocketConnector},
    link::{DataEncoding, Link, LinkPathState, LinkReadError},
    relay::executor::{HarnessClaim, HarnessValidator, RelayExecutor, ValidationOutcome},
};

const ENVIRONMENT: &str = "env-1";
const REGISTRATION: &str = "reg-1";

/// Accepts and counts every harness.
#[derive(Default)]
struct AcceptAllValidator(Mutex<usize>);

impl HarnessValidator for AcceptAllValidator {
    fn validate(&self, claim: HarnessClaim) -> BoxFuture<'static, ValidationOutcome> {
        assert_eq!(claim.authorization, "let me in");
        *self.0.lock().unwrap() += 1;
        Box::pin(async { ValidationOutcome::Accepted })
    }
}

/// Issues and counts grants for a relay.
struct FakeGrants {
    url: String,
    state: Mutex<FakeGrantState>,
}

struct FakeGrantState {
    executor_key: NoisePublicKey,
    fetched: usize,
    /// Whether grants are refused, and whether that refusal is transient.
    refusal: Option<bool>,
}

impl GrantSource for FakeGrants {
    fn fetch(&self) -> BoxFuture<'_, Result<RendezvousGrant, ConnectError>> {
        let mut state = self.state.lock().unwrap();
        state.fetched += 1;
        let grant = match state.refusal {
            Some(is_transient) => Err(ConnectError::Grant {
                fault: crate::connect::ConnectFault::Peer,
                is_transient,
                source: "environment is offline".into(),
            }),
            None => Ok(RendezvousGrant {
                url: self.url.clone(),
                environment_id: ENVIRONMENT.to_owned(),
                registration_id: REGISTRATION.to_owned(),
                executor_key: state.executor_key.clone(),
                authorization: "let me in".to_owned(),
            }),
        };
        Box::pin(async { grant })
    }
}

/// A relay with an executor that always reconnects.
struct RelayFixture {
    relay: TestRelay,
    grants: Arc<FakeGrants>,
    validator: Arc<AcceptAllValidator>,
    links: mpsc::Receiver<Link>,
}

impl RelayFixture {
    async fn new() -> Self {
        let relay = TestRelay::start().await;
        let identity = Arc::new(NoiseIdentity::generate());
        let grants = FakeGrants {
            url: relay.url("harness"),
            state: Mutex::new(FakeGrantState {
                executor_key: identity.public_key().clone(),
                fetched: 0,
                refusal: None,
            }),
        };
        let validator = Arc::new(AcceptAllValidator::default());
        let (send, links) = mpsc::channel(16);
        let shared = Arc::clone(&validator) as Arc<dyn HarnessValidator>;
        let mut executor = RelayExecutor::new(identity, ENVIRONMENT.to_owned(), shared, send);
        let server = WebSocketConnector::new(relay.url("executor").parse().unwrap());
        tokio::spawn(async move {
            loop {
                if let Ok(socket) = server.open_socket(None).await {
                    executor.serve(socket, REGISTRATION.to_owned()).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        relay.executor_connected().await;
        Self {
            relay,
            grants: Arc::new(grants),
            validator,
            links,
        }
    }

    async fn open(&self, options: HarnessOptions) -> Result<Link, ConnectError> {
        let grants = Arc::clone(&self.grants) as Arc<dyn GrantSource>;
        let identity = Arc::new(NoiseIdentity::generate());
        within("a link", open(identity, grants, options)).await
    }

    /// Opens a link and returns both ends.
    async fn pair(&mut self, options: HarnessOptions) -> (Link, Link) {
        let near = self.open(options).await.unwrap();
        let far = within("the other end", self.links.recv()).await.unwrap();
        (near, far)
    }

    fn handshakes(&self) -> usize {
        *self.validator.0.lock().unwrap()
    }

    fn fetched(&self) -> usize {
        self.grants.state.lock().unwrap().fetched
    }

    fn refuse_grants(&self, is_transient: bool) {
        self.grants.state.lock().unwrap().refusal = Some(is_transient);
    }
}

fn reliable() -> HarnessOptions {
    HarnessOptions::default()
}

fn plain() -> HarnessOptions {
    HarnessOptions {
        offer: DeliveryOffer::Plain,
        ..HarnessOptions::default()
    }
}

/// Makes a message that is identified by its number.
fn numbered_message(number: usize, bytes: usize) -> Vec<u8> {
    let mut text = format!("{number} ").into_bytes();
    text.resize(bytes.max(text.len()), b'.');
    text
}

async fn send(link: &mut Link, text: Vec<u8>) {
    link.writer
        .push(OutgoingMessage::Text(text), DataEncoding::Text);
    within("flushed", link.writer.flush()).await.unwrap();
}

async fn receive(link: &mut Link) -> Bytes {
    within("a message", link.reader.next())
        .await
        .unwrap()
        .unwrap()
}

/// Sends a message in each direction.
async fn echo(near: &mut Link, far: &mut Link) {
    send(near, b"there".to_vec()).await;
    assert_eq!(receive(far).await, "there");
    send(far, b"back".to_vec()).await;
    assert_eq!(receive(near).await, "back");
}

async fn end_of(link: &mut Link) -> Result<Option<Bytes>, LinkReadError> {
    within("the end", link.reader.next()).await
}
