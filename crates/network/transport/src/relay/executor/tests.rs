//! An executor connected to a scripted relay with scripted harnesses.

mod admission;
mod parking;
mod streams;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_relay::{
    frame::{FrameBody, RESET_PROTOCOL_ERROR, RelayFrame, SealedRecord, StreamId},
    handshake::{HandshakeScope, NoiseHandshakeError, NoiseInitiator},
    identity::{NoiseIdentity, NoisePublicKey},
    stream::{DeliveryMode, RelayStream},
};
use exec_wire::outgoing_message::OutgoingMessage;
use futures_util::future::BoxFuture;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::*;
use crate::{
    link::{DataEncoding, Link, LinkReadError, LinkRole},
    websocket::socket::{BinarySocket, RawMessage, SocketLimits},
};

const ENVIRONMENT: &str = "env-1";
const REGISTRATION: &str = "reg-1";

/// Passes each claim to the test, which decides the outcome.
struct ScriptedValidator(mpsc::UnboundedSender<(HarnessClaim, oneshot::Sender<ValidationOutcome>)>);

impl HarnessValidator for ScriptedValidator {
    fn validate(&self, claim: HarnessClaim) -> BoxFuture<'static, ValidationOutcome> {
        let (sender, answered) = oneshot::channel();
        self.0.send((claim, sender)).unwrap();
        Box::pin(async move { answered.await.unwrap_or(ValidationOutcome::Refused) })
    }
}

/// An executor with its relay and harness.
struct ExecutorFixture {
    relay: BinarySocket,
    serving: JoinHandle<(RelayExecutor, ExecutorDisconnect)>,
    links: mpsc::Receiver<Link>,
    claims: mpsc::UnboundedReceiver<(HarnessClaim, oneshot::Sender<ValidationOutcome>)>,
    executor_key: NoisePublicKey,
    harness: NoiseIdentity,
}

fn pipe(bytes: usize) -> [BinarySocket; 2] {
    let (server, client) = tokio::io::duplex(bytes);
    [(server, LinkRole::Server), (client, LinkRole::Client)].map(socket)
}

fn socket((end, role): (tokio::io::DuplexStream, LinkRole)) -> BinarySocket {
    let (input, output) = tokio::io::split(end);
    BinarySocket::new(input, output, &[], role, SocketLimits::default())
}

fn serve(
    mut executor: RelayExecutor,
    socket: BinarySocket,
) -> JoinHandle<(RelayExecutor, ExecutorDisconnect)> {
    tokio::spawn(async move {
        let ended = executor.serve(socket, REGISTRATION.to_owned()).await;
        (executor, ended)
    })
}

/// Starts an executor connected through a pipe of this capacity.
fn fixture_with(bytes: usize) -> ExecutorFixture {
    let identity = Arc::new(NoiseIdentity::generate());
    let executor_key = identity.public_key().clone();
    let (claim_sender, claims) = mpsc::unbounded_channel();
    let (links, accepted) = mpsc::channel(256);
    let executor = RelayExecutor::new(
        identity,
        ENVIRONMENT.into(),
        Arc::new(ScriptedValidator(claim_sender)),
        links,
    );
    let [relay, socket] = pipe(bytes);
    ExecutorFixture {
        relay,
        serving: serve(executor, socket),
        links: accepted,
        claims,
        executor_key,
        harness: NoiseIdentity::generate(),
    }
}

fn fixture() -> ExecutorFixture {
    fixture_with(1 << 20)
}

fn id(name: &str) -> StreamId {
    StreamId::new(name).unwrap()
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

fn reset(stream: &str) -> RelayFrame {
    let reason = RESET_PROTOCOL_ERROR.to_owned();
    RelayFrame::new(id(stream), FrameBody::Reset { reason })
}

fn data(stream: &str, seq: u32) -> RelayFrame {
    let payload = Bytes::from_static(&[7; 40]);
    let data = SealedRecord {
        seq,
        segment_index: 0,
        segment_count: 1,
        payload,
    };
    RelayFrame::new(id(stream), FrameBody::Data(data))
}

impl ExecutorFixture {
    async fn send_frame(&mut self, frame: RelayFrame) {
        self.send_raw(frame.encode()).await;
    }

    async fn send_raw(&mut self, message: Bytes) {
        self.relay.writer.push(message);
        self.relay.writer.flush().await.unwrap();
    }

    /// Returns the next frame from the executor.
    async fn next_frame(&mut self) -> RelayFrame {
        match within("a frame", self.relay.reader.next()).await.unwrap() {
            Some(RawMessage::Binary(message)) => RelayFrame::decode(message).unwrap(),
            other => panic!("no frame: {other:?}"),
        }
    }

    /// Checks that the executor sends nothing for a moment.
    async fn expect_silence(&mut self) {
        let received = timeout(Duration::from_millis(1), self.relay.reader.next()).await;
        assert!(received.is_err(), "{received:?}");
    }

    async fn expect_reset(&mut self, stream: &str) {
        assert_eq!(self.next_frame().await, reset(stream));
    }

    /// Makes the first handshake message for a stream.
    fn first_message(&self, stream: &str) -> (NoiseInitiator, RelayFrame) {
        let scope = HandshakeScope {
            environment_id: ENVIRONMENT,
            registration_id: REGISTRATION,
            stream_id: stream,
        };
        let (initiator, message) =
            NoiseInitiator::start(&self.harness, &self.executor_key, scope, "let me in").unwrap();
        (
            initiator,
            RelayFrame::new(id(stream), FrameBody::Handshake(message)),
        )
    }

    /// Sends a handshake that reaches the validator.
    async fn start_handshake(
        &mut self,
        stream: &str,
    ) -> (NoiseInitiator, oneshot::Sender<ValidationOutcome>) {
        let (initiator, frame) = self.first_message(stream);
        self.send_frame(frame).await;
        let (claim, sender) = within("a claim", self.claims.recv()).await.unwrap();
        assert_eq!(claim.stream_id, id(stream));
        assert_eq!(claim.registration_id, REGISTRATION);
        assert_eq!(claim.authorization, "let me in");
        assert_eq!(claim.harness_key, *self.harness.public_key());
        (initiator, sender)
    }

    /// Sends a handshake that is reset without reaching the validator.
    async fn expect_handshake_refused(&mut self, stream: &str) {
        let (_, frame) = self.first_message(stream);
        self.send_frame(frame).await;
        self.expect_reset(stream).await;
        assert!(self.claims.try_recv().is_err());
    }

    /// Sends an invalid handshake message.
    async fn send_garbage_handshake(&mut self, stream: &str) {
        let garbage = FrameBody::Handshake(Bytes::from(vec![1; 4000]));
        self.send_frame(RelayFrame::new(id(stream), garbage)).await;
        self.expect_reset(stream).await;
    }

    /// Opens a stream and returns both of its ends.
    async fn open_stream(&mut self, stream: &str, delivery: DeliveryMode) -> (RelayStream, Link) {
        self.send_frame(RelayFrame::new(
            id(stream),
            FrameBody::Resume { next_seq: 0 },
        ))
        .await;
        if delivery == DeliveryMode::Reliable {
            self.send_frame(RelayFrame::announcement(id(stream))).await;
        }
        let (initiator, validation) = self.start_handshake(stream).await;
        validation.send(ValidationOutcome::Accepted).unwrap();
        if delivery == DeliveryMode::Reliable {
            assert_eq!(
                self.next_frame().await,
                RelayFrame::announcement(id(stream))
            );
        }
        let FrameBody::Handshake(message) = self.next_frame().await.body else {
            panic!("no second message");
        };
        let channel = initiator.finish(&message).unwrap();
        let link = within("a link", self.links.recv()).await.unwrap();
        (RelayStream::new(id(stream), channel, delivery, now()), link)
    }

    /// Sends a message from a harness.
    async fn send_message(&mut self, stream: &mut RelayStream, text: &str) {
        stream
            .push(|out| out.extend_from_slice(text.as_bytes()))
            .unwrap();
        self.send_all(stream).await;
    }

    async fn send_all(&mut self, stream: &mut RelayStream) {
        while let Some(frame) = stream.poll_frame(now()) {
            self.send_raw(frame).await;
        }
    }

    /// Returns the next message for a harness, if all frames belong to it.
    async fn next_message(&mut self, stream: &mut RelayStream) -> Bytes {
        loop {
            if let Some(message) = stream.poll_message() {
                return message;
            }
            let frame = self.next_frame().await;
            stream.handle_frame(frame, now()).unwrap();
        }
    }

    /// Sends a message in each direction.
    async fn echo(&mut self, stream: &mut RelayStream, link: &mut Link) {
        self.send_message(stream, "there").await;
        assert_eq!(read(link).await, "there");
        respond(link, "back").await;
        assert_eq!(self.next_message(stream).await, note("back"));
    }

    /// Cuts the executor's connection and serves it on another one.
    async fn replace_relay(&mut self) -> ExecutorDisconnect {
        let [relay, socket] = pipe(1 << 20);
        self.replace_relay_with(relay, socket).await
    }

    async fn replace_relay_with(
        &mut self,
        relay: BinarySocket,
        socket: BinarySocket,
    ) -> ExecutorDisconnect {
        self.relay = relay;
        let placeholder = tokio::spawn(std::future::pending());
        let serving = std::mem::replace(&mut self.serving, placeholder);
        let (executor, ended) = within("the end", serving).await.unwrap();
        self.serving = serve(executor, socket);
        ended
    }
}

fn note(method: &str) -> String {
    format!(r#"{{"method":"{method}","params":null}}"#)
}

async fn read(link: &mut Link) -> Bytes {
    within("a message", link.reader.next())
        .await
        .unwrap()
        .unwrap()
}

async fn respond(link: &mut Link, method: &str) {
    let message = OutgoingMessage::notification(method, &());
    link.writer.push(message, DataEncoding::Text);
    within("flushed", link.writer.flush()).await.unwrap();
}

/// Returns how a link ends for its reader.
async fn end_of(link: &mut Link) -> Result<Option<Bytes>, LinkReadError> {
    within("the end", link.reader.next()).await
}

/// Runs a future with a timeout. The clock is paused while tasks run.
async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(300), future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not in time"))
}
