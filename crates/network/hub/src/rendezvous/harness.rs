//! Task of a harness websocket: forwards its frames into the circuit, and frames of the circuit to
//! it.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use bytes::Bytes;
use exec_relay::frame_route::FrameRoute;
use exec_transport::websocket::socket::{BinarySocket, RawMessage};

use super::{FlushOutcome, WebSocketClose, flush};
use crate::{
    circuit::Circuit,
    limits,
    metrics::{FrameBatch, HubMetrics},
};

/// Forwards frames until either side ends, and returns why.
pub(super) async fn relay(
    socket: &mut BinarySocket,
    circuit: Circuit,
    metrics: &HubMetrics,
) -> WebSocketClose {
    let mut relay = HarnessRelay {
        socket,
        circuit,
        blocked: None,
        metrics,
    };
    poll_fn(|cx| relay.poll(cx)).await
}

struct HarnessRelay<'a> {
    socket: &'a mut BinarySocket,
    circuit: Circuit,
    /// A frame that the circuit cannot accept yet. Backpressure: nothing is read until it can.
    blocked: Option<Bytes>,
    metrics: &'a HubMetrics,
}

impl HarnessRelay<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<WebSocketClose> {
        match self.make_progress(cx) {
            Ok(()) => Poll::Pending,
            Err(close_cause) => Poll::Ready(close_cause),
        }
    }

    /// Makes all possible progress; everything blocked has registered `cx`.
    fn make_progress(&mut self, cx: &mut Context<'_>) -> Result<(), WebSocketClose> {
        for _ in 0..limits::ROUNDS {
            let read = self.read(cx)?;
            let taken = self.take(cx)?;
            // If the socket's buffer was full, continue once it has been flushed.
            let flushed = flush(&mut self.socket.writer, cx)? == FlushOutcome::Done;
            if !(read || taken && flushed) {
                return Ok(());
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Reads from the websocket. Returns whether there may be more.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, WebSocketClose> {
        for _ in 0..limits::ROUND_FRAMES {
            if self.blocked.is_none() {
                let Poll::Ready(message) = self.socket.reader.poll_message(cx) else {
                    return Ok(false);
                };
                match message.map_err(|error| WebSocketClose::from_read_error(&error))? {
                    None => return Err(WebSocketClose::Peer),
                    Some(RawMessage::Text) => return Err(WebSocketClose::Text),
                    Some(RawMessage::Binary(frame)) => {
                        if FrameRoute::peek(&frame).is_err() {
                            self.metrics.garbage.increment(1);
                            return Err(WebSocketClose::Garbage);
                        }
                        self.blocked = Some(frame);
                    }
                }
            }
            // A closed circuit is noticed below, after its remaining frames.
            let Poll::Ready(Ok(())) = self.circuit.sender.poll_ready(cx) else {
                return Ok(false);
            };
            if let Some(frame) = self.blocked.take()
                && self.circuit.sender.push(frame).is_err()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes frames from the circuit. Returns whether there may be more.
    fn take(&mut self, cx: &mut Context<'_>) -> Result<bool, WebSocketClose> {
        let mut forwarded = FrameBatch::default();
        let mut more = true;
        for _ in 0..limits::ROUND_FRAMES {
            if self.socket.writer.buffered() >= limits::WRITE_AHEAD_BYTES {
                break;
            }
            match self.circuit.receiver.poll_frame(cx) {
                Poll::Pending => {
                    more = false;
                    break;
                }
                Poll::Ready(Ok(frame)) => {
                    forwarded.add(frame.len());
                    self.socket.writer.push(frame);
                }
                Poll::Ready(Err(close_reason)) => return Err(close_reason.into()),
            }
        }
        self.metrics.to_harness.add(forwarded);
        Ok(more)
    }
}
