//! The handshake on a new websocket.

use exec_relay::{
    channel::Channel,
    frame::{Body, Frame, StreamId},
    handshake::{Initiator, Scope},
    identity::Identity,
    stream::Delivery,
};
use uuid::Uuid;

use super::{Offer, Ticket};
use crate::{
    connect::ConnectError,
    link::ReadError,
    websocket::socket::{Raw, Socket},
};

/// A stream that the executor has accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) stream_id: StreamId,
    pub(super) channel: Channel,
    pub(super) delivery: Delivery,
}

/// Asks the executor of a ticket for a new stream.
pub(super) async fn shake_hands(
    socket: &mut Socket,
    identity: &Identity,
    ticket: &Ticket,
    offer: Offer,
) -> Result<Accepted, ConnectError> {
    let name = Uuid::new_v4().to_string();
    let stream_id =
        StreamId::new(&name).map_err(|_| ConnectError::Relay("no name for a stream"))?;
    let scope = Scope {
        environment_id: &ticket.environment_id,
        registration_id: &ticket.registration_id,
        stream_id: &name,
    };
    let (initiator, message) =
        Initiator::start(identity, &ticket.executor_key, scope, &ticket.authorization)?;
    let mut say = |frame: Frame| socket.writer.push(frame.encode());
    say(Frame::new(stream_id.clone(), Body::Resume { next_seq: 0 }));
    if offer == Offer::Reliable {
        say(Frame::announcement(stream_id.clone()));
    }
    say(Frame::new(stream_id.clone(), Body::Handshake(message)));
    socket.writer.flush().await?;
    let (answer, delivery) = answer(socket, &stream_id, offer).await?;
    Ok(Accepted {
        channel: initiator.finish(&answer)?,
        stream_id,
        delivery,
    })
}

/// Waits for the executor's message.
async fn answer(
    socket: &mut Socket,
    stream_id: &StreamId,
    offer: Offer,
) -> Result<(bytes::Bytes, Delivery), ConnectError> {
    let mut delivery = Delivery::Plain;
    loop {
        let message = match socket.reader.next().await.map_err(broken)? {
            Some(Raw::Binary(message)) => message,
            Some(Raw::Text) => return Err(ConnectError::Relay("relay sends text")),
            None => return Err(ConnectError::Closed),
        };
        let frame = Frame::decode(message)
            .map_err(|_| ConnectError::Relay("relay sends what is no frame"))?;
        if frame.stream_id != *stream_id {
            continue;
        }
        let is_announcement = frame.is_announcement();
        match frame.body {
            Body::Handshake(answer) => return Ok((answer, delivery)),
            Body::Ack if is_announcement && offer == Offer::Reliable => {
                delivery = Delivery::Reliable;
            }
            Body::Ack | Body::Resume { .. } | Body::Heartbeat => {}
            Body::Reset { .. } => return Err(ConnectError::StreamRefused),
            Body::Data(_) => return Err(ConnectError::Relay("data comes before the handshake")),
        }
    }
}

fn broken(error: ReadError) -> ConnectError {
    match error {
        ReadError::Io(error) => ConnectError::Io(error),
        ReadError::Protocol(what) => ConnectError::Relay(what),
        ReadError::TooLong(_) => ConnectError::Relay("relay sends a message that is too long"),
        ReadError::InvalidUtf8 => ConnectError::Relay("relay sends text that is not UTF-8"),
        ReadError::Exited(_)
        | ReadError::ExecutorChanged
        | ReadError::Stalled
        | ReadError::Stream(_) => ConnectError::Closed,
    }
}
