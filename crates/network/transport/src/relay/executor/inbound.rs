//! What a frame of the relay does, and what becomes of a validated harness.

use std::sync::Arc;

use exec_relay::{
    frame::{Body, Frame, RESET_CLOSED, StreamId},
    handshake::{Responder, Scope},
    stream::{Delivery, Stream},
};
use tokio::{sync::mpsc::error::TrySendError, time::Instant};

use super::{Claim, ValidationOutcome, connection::Connection, pending::Judged, streams::Streams};
use crate::relay::{cell::Cell, end::End, halves};

impl Connection<'_> {
    /// Handles a valid frame.
    pub(super) fn handle_frame(&mut self, streams: &mut Streams, frame: Frame) {
        let now = Instant::now().into_std();
        match &frame.body {
            Body::Handshake(message) => {
                let message = message.clone();
                self.handle_handshake(streams, frame.stream_id, &message);
            }
            Body::Reset { reason } => {
                self.pending.cancel(&frame.stream_id);
                if reason == RESET_CLOSED {
                    streams.end(&frame.stream_id, End::Reset);
                } else {
                    streams.park(&frame.stream_id, now);
                }
            }
            Body::Data(_) | Body::Resume { .. } | Body::Ack | Body::Heartbeat
                if streams.contains(&frame.stream_id) =>
            {
                self.deliver(streams, frame);
            }
            Body::Data(_) => {
                if self.pending.cancel(&frame.stream_id) {
                    self.admission.handle_failure(now);
                }
                self.reset(frame.stream_id);
            }
            Body::Resume { next_seq } => {
                // In front of a handshake it says nothing; else a harness comes back too late.
                if *next_seq > 0 || frame.ack > 0 || frame.ack_bits > 0 {
                    self.reset(frame.stream_id);
                }
            }
            Body::Ack if frame.is_announcement() => self.pending.announce(frame.stream_id),
            Body::Ack | Body::Heartbeat => {}
        }
    }

    /// Hands a frame to its stream.
    fn deliver(&mut self, streams: &mut Streams, frame: Frame) {
        let now = Instant::now().into_std();
        let stream_id = frame.stream_id.clone();
        let Some(entry) = streams.active(&stream_id, now) else {
            return;
        };
        // A stock executor holds such a frame to be invalid, and those are dropped.
        if entry.delivery == Delivery::Plain && !frame.is_plain() {
            return;
        }
        if let Err(error) = entry.cell.handle_frame(frame, now) {
            tracing::debug!(stream = ?stream_id, %error, "stream failed");
            streams.end(&stream_id, error.into());
            self.reset(stream_id);
        }
    }

    fn handle_handshake(&mut self, streams: &mut Streams, stream_id: StreamId, message: &[u8]) {
        let now = Instant::now().into_std();
        let delivery = self.pending.take_announced(&stream_id);
        if !self.admission.is_open(now) {
            return self.reset(stream_id);
        }
        if self.pending.cancel(&stream_id) {
            self.admission.handle_failure(now);
            return self.reset(stream_id);
        }
        // An active stream is not harmed by somebody who knows its name, nor a parked one by somebody
        // whom nobody has approved yet.
        if streams.contains(&stream_id) || self.pending.is_full() || !streams.has_room() {
            return self.reset(stream_id);
        }
        let scope = Scope {
            environment_id: &self.executor.environment_id,
            registration_id: &self.registration_id,
            stream_id: stream_id.as_str(),
        };
        let responder = match Responder::read(&self.executor.identity, scope, message) {
            Ok(responder) => responder,
            Err(error) => {
                tracing::debug!(stream = ?stream_id, %error, "handshake failed");
                self.admission.handle_failure(now);
                return self.reset(stream_id);
            }
        };
        let claim = Claim {
            registration_id: self.registration_id.clone(),
            stream_id: stream_id.clone(),
            harness_key: responder.harness_key().clone(),
            authorization: responder.authorization().to_owned(),
        };
        let validation = self.executor.validator.validate(claim);
        self.pending
            .start(stream_id, responder, delivery, validation);
    }

    /// Lets a harness in, or not.
    pub(super) fn handle_judged(&mut self, streams: &mut Streams, judged: Judged) {
        let now = Instant::now().into_std();
        let Judged {
            stream_id,
            responder,
            delivery,
            outcome,
        } = judged;
        match outcome {
            ValidationOutcome::Accepted => {}
            ValidationOutcome::Refused => {
                self.admission.handle_failure(now);
                return self.reset(stream_id);
            }
            ValidationOutcome::ExecutorUnauthenticated => {
                self.admission.handle_failure(now);
                return self.reject_authentication(stream_id, responder);
            }
        }
        // Others may have come in while this one was looked at.
        if !streams.has_room() {
            return self.reset(stream_id);
        }
        let harness_key = responder.harness_key().clone();
        let (message, channel) = match responder.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(stream = ?stream_id, %error, "handshake failed");
                self.admission.handle_failure(now);
                return self.reset(stream_id);
            }
        };
        let stream = Stream::new(stream_id.clone(), channel, delivery, now);
        let cell = Cell::new(stream_id.clone(), stream, Arc::clone(&streams.bell));
        let link = halves::link(Arc::clone(&cell), format!("relay stream {stream_id:?}"));
        if let Err(TrySendError::Full(_) | TrySendError::Closed(_)) =
            self.executor.links.try_send(link)
        {
            tracing::warn!("nobody takes a new stream");
            return self.reset(stream_id);
        }
        if delivery == Delivery::Reliable {
            self.push(&Frame::announcement(stream_id.clone()));
        }
        self.push(&Frame::new(stream_id, Body::Handshake(message)));
        streams.insert(cell, delivery, harness_key);
    }

    /// Completes a handshake with the message that the registry rejects this executor. Nothing is
    /// served on the stream: it stays unknown, and data on it is answered with a Reset.
    fn reject_authentication(&mut self, stream_id: StreamId, responder: Responder) {
        match responder.reject_authentication() {
            Ok(message) => self.push(&Frame::new(stream_id, Body::Handshake(message))),
            Err(error) => {
                tracing::debug!(stream = ?stream_id, %error, "handshake failed");
                self.reset(stream_id);
            }
        }
    }
}
