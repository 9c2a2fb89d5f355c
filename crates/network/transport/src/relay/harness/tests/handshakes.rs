//! What a harness accepts on its way in.

use exec_relay::{
    frame::{Body, Data, Frame, StreamId},
    handshake::{Responder, Scope},
    stream::Delivery,
};
use tokio::io::{AsyncWriteExt, DuplexStream};

use super::*;
use crate::{
    link::Role,
    relay::harness::{Accepted, shake_hands},
    websocket::socket::{Raw, Socket, SocketLimits},
};

fn socket(end: DuplexStream, role: Role) -> Socket {
    let (input, output) = tokio::io::split(end);
    Socket::new(input, output, &[], role, SocketLimits::default())
}

/// The executor and the relay, played by hand.
struct Far {
    socket: Socket,
    identity: Arc<Identity>,
    stream_id: StreamId,
    message: Bytes,
}

impl Far {
    async fn hear(&mut self) -> Frame {
        match self.socket.reader.next().await.unwrap() {
            Some(Raw::Binary(message)) => Frame::decode(message).unwrap(),
            other => panic!("no frame: {other:?}"),
        }
    }

    async fn say(&mut self, body: Body) {
        self.say_frame(Frame::new(self.stream_id.clone(), body))
            .await;
    }

    async fn say_frame(&mut self, frame: Frame) {
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

    /// Answers as an executor does.
    async fn accept(&mut self) {
        let (answer, _) = self.responder().accept().unwrap();
        self.say(Body::Handshake(answer)).await;
    }
}

/// Shakes hands with what `far` does once it has the first message.
async fn shake<F>(offer: Offer, far: impl FnOnce(Far) -> F) -> Result<Accepted, ConnectError>
where
    F: Future<Output = Far>,
{
    let (near, other) = tokio::io::duplex(1 << 20);
    let mut near = socket(near, Role::Client);
    let identity = Arc::new(Identity::generate());
    let ticket = Ticket {
        url: "ws://unused".to_owned(),
        environment_id: ENVIRONMENT.to_owned(),
        registration_id: REGISTRATION.to_owned(),
        executor_key: identity.public_key().clone(),
        authorization: "let me in".to_owned(),
    };
    let harness = Identity::generate();
    let mut answering = Far {
        socket: socket(other, Role::Server),
        identity,
        stream_id: StreamId::new("unknown").unwrap(),
        message: Bytes::new(),
    };
    let answer = async {
        let first = answering.hear().await;
        assert_eq!(first.body, Body::Resume { next_seq: 0 });
        assert_eq!((first.ack, first.ack_bits), (0, 0));
        answering.stream_id = first.stream_id;
        if offer == Offer::Reliable {
            assert!(answering.hear().await.is_announcement());
        }
        let Body::Handshake(message) = answering.hear().await.body else {
            panic!("no first message");
        };
        answering.message = message;
        far(answering).await
    };
    let shaken = shake_hands(&mut near, &harness, &ticket, offer);
    let (accepted, _far) = tokio::join!(shaken, answer);
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
async fn an_executor_that_announces_nothing_gets_a_plain_stream() {
    let accepted = shake(Offer::Reliable, async |mut far: Far| {
        far.accept().await;
        far
    });
    let accepted = accepted.await.unwrap();
    assert_eq!(accepted.delivery, Delivery::Plain);
    assert_eq!(accepted.stream_id.as_str().len(), 36);
}

#[tokio::test]
async fn the_announcement_of_an_executor_counts_if_we_made_ours() {
    for (offer, delivery) in [
        (Offer::Reliable, Delivery::Reliable),
        (Offer::Plain, Delivery::Plain),
    ] {
        let accepted = shake(offer, async |mut far: Far| {
            far.say_frame(Frame::announcement(far.stream_id.clone()))
                .await;
            far.accept().await;
            far
        });
        assert_eq!(accepted.await.unwrap().delivery, delivery);
    }
}

#[tokio::test]
async fn foreign_streams_and_what_says_nothing_are_ignored() {
    let accepted = shake(Offer::Reliable, async |mut far: Far| {
        let foreign = StreamId::new("foreign").unwrap();
        far.say_frame(Frame::announcement(foreign.clone())).await;
        far.say_frame(Frame::new(foreign.clone(), data())).await;
        let reason = "x".to_owned();
        far.say_frame(Frame::new(foreign, Body::Reset { reason }))
            .await;
        for body in [Body::Resume { next_seq: 0 }, Body::Ack, Body::Heartbeat] {
            far.say(body).await;
        }
        far.accept().await;
        far
    });
    assert_eq!(accepted.await.unwrap().delivery, Delivery::Plain);
}

#[tokio::test]
async fn a_reset_data_and_a_wrong_answer_are_the_end() {
    let reason = "noise_relay_protocol_error".to_owned();
    let refused = shake(Offer::Reliable, async |mut far: Far| {
        far.say(Body::Reset { reason }).await;
        far
    });
    let refused = refused.await.unwrap_err();
    assert!(matches!(refused, ConnectError::StreamRefused), "{refused}");
    let early = shake(Offer::Reliable, async |mut far: Far| {
        far.say(data()).await;
        far
    });
    let early = early.await.unwrap_err();
    assert!(matches!(early, ConnectError::Relay(_)), "{early}");
    let wrong = shake(Offer::Reliable, async |mut far: Far| {
        far.say(Body::Handshake(Bytes::from(vec![1; 3424]))).await;
        far
    });
    let wrong = wrong.await.unwrap_err();
    assert!(matches!(wrong, ConnectError::Handshake(_)), "{wrong}");
}

#[tokio::test]
async fn garbage_and_the_end_of_the_connection_are_the_end() {
    let garbage = shake(Offer::Reliable, async |mut far: Far| {
        far.socket.writer.push(Bytes::from_static(b"\xff\xff"));
        far.socket.writer.flush().await.unwrap();
        far
    });
    let garbage = garbage.await.unwrap_err();
    assert!(matches!(garbage, ConnectError::Relay(_)), "{garbage}");
    let closed = shake(Offer::Reliable, async |mut far: Far| {
        far.socket.writer.close().await.unwrap();
        far
    });
    let closed = closed.await.unwrap_err();
    assert!(matches!(closed, ConnectError::Closed), "{closed}");
}

#[tokio::test]
async fn text_is_the_end() {
    let (near, mut far) = tokio::io::duplex(1 << 20);
    far.write_all(&[0x81, 1, b'x']).await.unwrap();
    let identity = Identity::generate();
    let ticket = Ticket {
        url: String::new(),
        environment_id: ENVIRONMENT.to_owned(),
        registration_id: REGISTRATION.to_owned(),
        executor_key: identity.public_key().clone(),
        authorization: String::new(),
    };
    let mut near = socket(near, Role::Client);
    let text = shake_hands(&mut near, &identity, &ticket, Offer::Plain).await;
    assert!(matches!(text, Err(ConnectError::Relay("relay sends text"))));
}

#[tokio::test]
async fn a_harness_gives_up_at_once_when_the_registry_rejects_the_executor() {
    let refused = shake(Offer::Plain, async |mut far| {
        let answer = far.responder().reject_authentication().unwrap();
        far.say(Body::Handshake(answer)).await;
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
