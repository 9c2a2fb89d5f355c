//! The harness's handshake.

use exec_relay::{
    frame::{FrameBody, RelayFrame, SealedRecord, StreamId},
    handshake::{HandshakeScope, NoiseResponder},
    stream::DeliveryMode,
};
use tokio::io::{AsyncWriteExt, DuplexStream};

use super::*;
use crate::{
    link::LinkRole,
    relay::harness::{AcceptedStream, handshake},
    websocket::socket::{BinarySocket, RawMessage, SocketLimits},
};

fn socket(end: DuplexStream, role: LinkRole) -> BinarySocket {
    let (input, output) = tokio::io::split(end);
    BinarySocket::new(input, output, &[], role, SocketLimits::default())
}

/// A scripted executor behind a scripted relay.
struct FakeExecutor {
    socket: BinarySocket,
    identity: Arc<NoiseIdentity>,
    stream_id: StreamId,
    message: Bytes,
}

impl FakeExecutor {
    async fn next_frame(&mut self) -> RelayFrame {
        match self.socket.reader.next().await.unwrap() {
            Some(RawMessage::Binary(message)) => RelayFrame::decode(message).unwrap(),
            other => panic!("no frame: {other:?}"),
        }
    }

    async fn send_frame_body(&mut self, body: FrameBody) {
        self.send_frame(RelayFrame::new(self.stream_id.clone(), body))
            .await;
    }

    async fn send_frame(&mut self, frame: RelayFrame) {
        self.socket.writer.push(frame.encode());
        self.socket.writer.flush().await.unwrap();
    }

    /// Reads the first message.
    fn responder(&self) -> NoiseResponder {
        let scope = HandshakeScope {
            environment_id: ENVIRONMENT,
            registration_id: REGISTRATION,
            stream_id: self.stream_id.as_str(),
        };
        let responder = NoiseResponder::read(&self.identity, scope, &self.message).unwrap();
        assert_eq!(responder.authorization(), "let me in");
        responder
    }

    /// Sends an executor's handshake response.
    async fn accept(&mut self) {
        let (answer, _) = self.responder().accept().unwrap();
        self.send_frame_body(FrameBody::Handshake(answer)).await;
    }
}

/// Runs a handshake against `far`, which gets the first message.
async fn run_handshake<F>(
    offer: DeliveryOffer,
    far: impl FnOnce(FakeExecutor) -> F,
) -> Result<AcceptedStream, ConnectError>
where
    F: Future<Output = FakeExecutor>,
{
    let (near, other) = tokio::io::duplex(1 << 20);
    let mut near = socket(near, LinkRole::Client);
    let identity = Arc::new(NoiseIdentity::generate());
    let grant = RendezvousGrant {
        url: "ws://unused".to_owned(),
        environment_id: ENVIRONMENT.to_owned(),
        registration_id: REGISTRATION.to_owned(),
        executor_key: identity.public_key().clone(),
        authorization: "let me in".to_owned(),
    };
    let harness = NoiseIdentity::generate();
    let mut answering = FakeExecutor {
        socket: socket(other, LinkRole::Server),
        identity,
        stream_id: StreamId::new("unknown").unwrap(),
        message: Bytes::new(),
    };
    let answer = async {
        let first = answering.next_frame().await;
        assert_eq!(first.body, FrameBody::Resume { next_seq: 0 });
        assert_eq!((first.ack, first.ack_bits), (0, 0));
        answering.stream_id = first.stream_id;
        if offer == DeliveryOffer::Reliable {
            assert!(answering.next_frame().await.is_announcement());
        }
        let FrameBody::Handshake(message) = answering.next_frame().await.body else {
            panic!("no first message");
        };
        answering.message = message;
        far(answering).await
    };
    let handshaking = handshake(&mut near, &harness, &grant, offer);
    let (accepted, _far) = tokio::join!(handshaking, answer);
    accepted
}

fn data() -> FrameBody {
    FrameBody::Data(SealedRecord {
        seq: 0,
        segment_index: 0,
        segment_count: 1,
        payload: Bytes::from_static(&[7; 40]),
    })
}

#[tokio::test]
async fn executor_without_announcement_gets_a_plain_stream() {
    let accepted = run_handshake(DeliveryOffer::Reliable, async |mut far: FakeExecutor| {
        far.accept().await;
        far
    });
    let accepted = accepted.await.unwrap();
    assert_eq!(accepted.delivery, DeliveryMode::Plain);
    assert_eq!(accepted.stream_id.as_str().len(), 36);
}

#[tokio::test]
async fn stream_is_reliable_only_if_both_ends_announce_it() {
    for (offer, delivery) in [
        (DeliveryOffer::Reliable, DeliveryMode::Reliable),
        (DeliveryOffer::Plain, DeliveryMode::Plain),
    ] {
        let accepted = run_handshake(offer, async |mut far: FakeExecutor| {
            far.send_frame(RelayFrame::announcement(far.stream_id.clone()))
                .await;
            far.accept().await;
            far
        });
        assert_eq!(accepted.await.unwrap().delivery, delivery);
    }
}

#[tokio::test]
async fn foreign_and_informational_frames_are_ignored() {
    let accepted = run_handshake(DeliveryOffer::Reliable, async |mut far: FakeExecutor| {
        let foreign = StreamId::new("foreign").unwrap();
        far.send_frame(RelayFrame::announcement(foreign.clone()))
            .await;
        far.send_frame(RelayFrame::new(foreign.clone(), data()))
            .await;
        let reason = "x".to_owned();
        far.send_frame(RelayFrame::new(foreign, FrameBody::Reset { reason }))
            .await;
        for body in [
            FrameBody::Resume { next_seq: 0 },
            FrameBody::Ack,
            FrameBody::Heartbeat,
        ] {
            far.send_frame_body(body).await;
        }
        far.accept().await;
        far
    });
    assert_eq!(accepted.await.unwrap().delivery, DeliveryMode::Plain);
}

#[tokio::test]
async fn reset_early_data_or_invalid_response_fails_the_handshake() {
    let reason = "noise_relay_protocol_error".to_owned();
    let refused = run_handshake(DeliveryOffer::Reliable, async |mut far: FakeExecutor| {
        far.send_frame_body(FrameBody::Reset { reason }).await;
        far
    });
    let refused = refused.await.unwrap_err();
    assert!(matches!(refused, ConnectError::StreamRefused), "{refused}");
    let early = run_handshake(DeliveryOffer::Reliable, async |mut far: FakeExecutor| {
        far.send_frame_body(data()).await;
        far
    });
    let early = early.await.unwrap_err();
    assert!(matches!(early, ConnectError::Relay(_)), "{early}");
    let wrong = run_handshake(DeliveryOffer::Reliable, async |mut far: FakeExecutor| {
        far.send_frame_body(FrameBody::Handshake(Bytes::from(vec![1; 3424])))
            .await;
        far
    });
    let wrong = wrong.await.unwrap_err();
    assert!(matches!(wrong, ConnectError::Handshake(_)), "{wrong}");
}

#[tokio::test]
async fn garbage_or_a_closed_connection_fails_the_handshake() {
    let garbage = run_handshake(DeliveryOffer::Reliable, async |mut far: FakeExecutor| {
        far.socket.writer.push(Bytes::from_static(b"\xff\xff"));
        far.socket.writer.flush().await.unwrap();
        far
    });
    let garbage = garbage.await.unwrap_err();
    assert!(matches!(garbage, ConnectError::Relay(_)), "{garbage}");
    let closed = run_handshake(DeliveryOffer::Reliable, async |mut far: FakeExecutor| {
        far.socket.writer.close().await.unwrap();
        far
    });
    let closed = closed.await.unwrap_err();
    assert!(matches!(closed, ConnectError::Closed), "{closed}");
}

#[tokio::test]
async fn text_message_fails_the_handshake() {
    let (near, mut far) = tokio::io::duplex(1 << 20);
    far.write_all(&[0x81, 1, b'x']).await.unwrap();
    let identity = NoiseIdentity::generate();
    let grant = RendezvousGrant {
        url: String::new(),
        environment_id: ENVIRONMENT.to_owned(),
        registration_id: REGISTRATION.to_owned(),
        executor_key: identity.public_key().clone(),
        authorization: String::new(),
    };
    let mut near = socket(near, LinkRole::Client);
    let text = handshake(&mut near, &identity, &grant, DeliveryOffer::Plain).await;
    assert!(matches!(
        text,
        Err(ConnectError::Relay("relay sent a text message"))
    ));
}

#[tokio::test]
async fn registry_rejection_of_the_executor_is_permanent() {
    let refused = run_handshake(DeliveryOffer::Plain, async |mut far| {
        let answer = far.responder().reject_authentication().unwrap();
        far.send_frame_body(FrameBody::Handshake(answer)).await;
        far
    });
    let error = refused.await.unwrap_err();
    assert!(!error.is_transient(), "{error:?}");
    let text = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        text.starts_with("environment registry authentication rejected"),
        "{text}"
    );
}
