//! The harness's handshake.

use exec_relay::{
    frame::{Body, Data, Frame, StreamId},
    handshake::{Responder, Scope},
    stream::Delivery,
};
use tokio::io::{AsyncWriteExt, DuplexStream};

use super::*;
use crate::{
    link::Role,
    relay::harness::{AcceptedStream, handshake},
    websocket::socket::{Raw, Socket, SocketLimits},
};

fn socket(end: DuplexStream, role: Role) -> Socket {
    let (input, output) = tokio::io::split(end);
    Socket::new(input, output, &[], role, SocketLimits::default())
}

/// A scripted executor behind a scripted relay.
struct FakeExecutor {
    socket: Socket,
    identity: Arc<Identity>,
    stream_id: StreamId,
    message: Bytes,
}

impl FakeExecutor {
    async fn next_frame(&mut self) -> Frame {
        match self.socket.reader.next().await.unwrap() {
            Some(Raw::Binary(message)) => Frame::decode(message).unwrap(),
            other => panic!("no frame: {other:?}"),
        }
    }

    async fn send_frame_body(&mut self, body: Body) {
        self.send_frame(Frame::new(self.stream_id.clone(), body))
            .await;
    }

    async fn send_frame(&mut self, frame: Frame) {
        self.socket.writer.push(frame.encode());
        self.socket.writer.flush().await.unwrap();
    }

    /// Reads the first message.
    fn responder(&self) -> Responder {
        let scope = Scope {
            environment_id: ENVIRONMENT,
            registration_id: REGISTRATION,
            stream_id: self.stream_id.as_str(),
        };
        let responder = Responder::read(&self.identity, scope, &self.message).unwrap();
        assert_eq!(responder.authorization(), "let me in");
        responder
    }

    /// Sends an executor's handshake response.
    async fn accept(&mut self) {
        let (answer, _) = self.responder().accept().unwrap();
        self.send_frame_body(Body::Handshake(answer)).await;
    }
}

/// Runs a handshake against `far`, which gets the first message.
async fn run_handshake<F>(
    offer: Offer,
    far: impl FnOnce(FakeExecutor) -> F,
) -> Result<AcceptedStream, ConnectError>
where
    F: Future<Output = FakeExecutor>,
{
    let (near, other) = tokio::io::duplex(1 << 20);
    let mut near = socket(near, Role::Client);
    let identity = Arc::new(Identity::generate());
    let grant = Ticket {
        url: "ws://unused".to_owned(),
        environment_id: ENVIRONMENT.to_owned(),
        registration_id: REGISTRATION.to_owned(),
        executor_key: identity.public_key().clone(),
        authorization: "let me in".to_owned(),
    };
    let harness = Identity::generate();
    let mut answering = FakeExecutor {
        socket: socket(other, Role::Server),
        identity,
        stream_id: StreamId::new("unknown").unwrap(),
        message: Bytes::new(),
    };
    let answer = async {
        let first = answering.next_frame().await;
        assert_eq!(first.body, Body::Resume { next_seq: 0 });
        assert_eq!((first.ack, first.ack_bits), (0, 0));
        answering.stream_id = first.stream_id;
        if offer == Offer::Reliable {
            assert!(answering.next_frame().await.is_announcement());
        }
        let Body::Handshake(message) = answering.next_frame().await.body else {
            panic!("no first message");
        };
        answering.message = message;
        far(answering).await
    };
    let handshaking = handshake(&mut near, &harness, &grant, offer);
    let (accepted, _far) = tokio::join!(handshaking, answer);
    accepted
}

fn data() -> Body {
    Body::Data(Data {
        seq: 0,
        segment_index: 0,
        segment_count: 1,
        payload: Bytes::from_static(&[7; 40]),
    })
}

#[tokio::test]
async fn executor_without_announcement_gets_a_plain_stream() {
    let accepted = run_handshake(Offer::Reliable, async |mut far: FakeExecutor| {
        far.accept().await;
        far
    });
    let accepted = accepted.await.unwrap();
    assert_eq!(accepted.delivery, Delivery::Plain);
    assert_eq!(accepted.stream_id.as_str().len(), 36);
}

#[tokio::test]
async fn stream_is_reliable_only_if_both_ends_announce_it() {
    for (offer, delivery) in [
        (Offer::Reliable, Delivery::Reliable),
        (Offer::Plain, Delivery::Plain),
    ] {
        let accepted = run_handshake(offer, async |mut far: FakeExecutor| {
            far.send_frame(Frame::announcement(far.stream_id.clone()))
                .await;
            far.accept().await;
            far
        });
        assert_eq!(accepted.await.unwrap().delivery, delivery);
    }
}

#[tokio::test]
async fn foreign_and_informational_frames_are_ignored() {
    let accepted = run_handshake(Offer::Reliable, async |mut far: FakeExecutor| {
        let foreign = StreamId::new("foreign").unwrap();
        far.send_frame(Frame::announcement(foreign.clone())).await;
        far.send_frame(Frame::new(foreign.clone(), data())).await;
        let reason = "x".to_owned();
        far.send_frame(Frame::new(foreign, Body::Reset { reason }))
            .await;
        for body in [Body::Resume { next_seq: 0 }, Body::Ack, Body::Heartbeat] {
            far.send_frame_body(body).await;
        }
        far.accept().await;
        far
    });
    assert_eq!(accepted.await.unwrap().delivery, Delivery::Plain);
}

#[tokio::test]
async fn reset_early_data_or_invalid_response_fails_the_handshake() {
    let reason = "noise_relay_protocol_error".to_owned();
    let refused = run_handshake(Offer::Reliable, async |mut far: FakeExecutor| {
        far.send_frame_body(Body::Reset { reason }).await;
        far
    });
    let refused = refused.await.unwrap_err();
    assert!(matches!(refused, ConnectError::StreamRefused), "{refused}");
    let early = run_handshake(Offer::Reliable, async |mut far: FakeExecutor| {
        far.send_frame_body(data()).await;
        far
    });
    let early = early.await.unwrap_err();
    assert!(matches!(early, ConnectError::Relay(_)), "{early}");
    let wrong = run_handshake(Offer::Reliable, async |mut far: FakeExecutor| {
        far.send_frame_body(Body::Handshake(Bytes::from(vec![1; 3424])))
            .await;
        far
    });
    let wrong = wrong.await.unwrap_err();
    assert!(matches!(wrong, ConnectError::Handshake(_)), "{wrong}");
}

#[tokio::test]
async fn garbage_or_a_closed_connection_fails_the_handshake() {
    let garbage = run_handshake(Offer::Reliable, async |mut far: FakeExecutor| {
        far.socket.writer.push(Bytes::from_static(b"\xff\xff"));
        far.socket.writer.flush().await.unwrap();
        far
    });
    let garbage = garbage.await.unwrap_err();
    assert!(matches!(garbage, ConnectError::Relay(_)), "{garbage}");
    let closed = run_handshake(Offer::Reliable, async |mut far: FakeExecutor| {
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
    let identity = Identity::generate();
    let grant = Ticket {
        url: String::new(),
        environment_id: ENVIRONMENT.to_owned(),
        registration_id: REGISTRATION.to_owned(),
        executor_key: identity.public_key().clone(),
        authorization: String::new(),
    };
    let mut near = socket(near, Role::Client);
    let text = handshake(&mut near, &identity, &grant, Offer::Plain).await;
    assert!(matches!(
        text,
        Err(ConnectError::Relay("relay sent a text message"))
    ));
}

#[tokio::test]
async fn registry_rejection_of_the_executor_is_permanent() {
    let refused = run_handshake(Offer::Plain, async |mut far| {
        let answer = far.responder().reject_authentication().unwrap();
        far.send_frame_body(Body::Handshake(answer)).await;
        far
    });
    let error = refused.await.unwrap_err();
    assert!(!error.is_passing(), "{error:?}");
    let text = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        text.starts_with("environment registry authentication rejected"),
        "{text}"
    );
}
