//! Task of a harness websocket: forwards its frames into the circuit, and frames of the circuit to
//! it.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use bytes::Bytes;
use exec_relay::route::Route;
use exec_transport::websocket::socket::{Raw, Socket};

use super::{Farewell, Flush, flush};
use crate::{
    circuit::Circuit,
    limits,
    metrics::{Metrics, Moved},
};

/// Forwards frames until either side ends, and returns why.
pub(super) async fn relay(socket: &mut Socket, circuit: Circuit, metrics: &Metrics) -> Farewell {
    let mut relay = Relay {
        socket,
        circuit,
        waiting: None,
        metrics,
    };
    poll_fn(|cx| relay.poll(cx)).await
}

struct Relay<'a> {
    socket: &'a mut Socket,
    circuit: Circuit,
    /// A frame that the circuit cannot accept yet. Backpressure: nothing is read until it can.
    waiting: Option<Bytes>,
    metrics: &'a Metrics,
}

impl Relay<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Farewell> {
        match self.turn(cx) {
            Ok(()) => Poll::Pending,
            Err(farewell) => Poll::Ready(farewell),
        }
    }

    /// Makes all possible progress; everything blocked has registered `cx`.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<(), Farewell> {
        for _ in 0..limits::TURNS {
            let read = self.read(cx)?;
            let taken = self.take(cx)?;
            // If the socket's buffer was full, continue once it has been flushed.
            let flushed = flush(&mut self.socket.writer, cx)? == Flush::Done;
            if !(read || taken && flushed) {
                return Ok(());
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Reads from the websocket. Returns whether there may be more.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, Farewell> {
        for _ in 0..limits::TURN_FRAMES {
            if self.waiting.is_none() {
                let Poll::Ready(message) = self.socket.reader.poll_message(cx) else {
                    return Ok(false);
                };
                match message.map_err(|error| Farewell::unreadable(&error))? {
                    None => return Err(Farewell::Peer),
                    Some(Raw::Text) => return Err(Farewell::Text),
                    Some(Raw::Binary(frame)) => {
                        if Route::peek(&frame).is_err() {
                            self.metrics.garbage.increment(1);
                            return Err(Farewell::Garbage);
                        }
                        self.waiting = Some(frame);
                    }
                }
            }
            // A closed circuit is noticed below, after its remaining frames.
            let Poll::Ready(Ok(())) = self.circuit.sender.poll_ready(cx) else {
                return Ok(false);
            };
            if let Some(frame) = self.waiting.take()
                && self.circuit.sender.push(frame).is_err()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes frames from the circuit. Returns whether there may be more.
    fn take(&mut self, cx: &mut Context<'_>) -> Result<bool, Farewell> {
        let mut moved = Moved::default();
        let mut more = true;
        for _ in 0..limits::TURN_FRAMES {
            if self.socket.writer.buffered() >= limits::WRITE_AHEAD_BYTES {
                break;
            }
            match self.circuit.receiver.poll_frame(cx) {
                Poll::Pending => {
                    more = false;
                    break;
                }
                Poll::Ready(Ok(frame)) => {
                    moved.add(frame.len());
                    self.socket.writer.push(frame);
                }
                Poll::Ready(Err(ending)) => return Err(ending.into()),
            }
        }
        self.metrics.to_harness.add(moved);
        Ok(more)
    }
}
