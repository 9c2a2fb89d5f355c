//! One tunnel: the events of both directions, their windows and cursors.

use std::collections::VecDeque;

use bytes::Bytes;
use exec_wire::{
    id::{ListenId, TunnelId},
    limits,
    tunnel::{IncomingTunnel, TunnelCursor, TunnelMessage},
};

use super::{TunnelClosed, TunnelRead};

/// Unread data at which an acknowledgement is due although more follows.
const ACK_BYTES: usize = limits::TUNNEL_WINDOW_BYTES / 4;
/// Unread data at which an acknowledgement is due if the reader has everything. Half of what a
/// sender may always send.
const CAUGHT_UP_ACK_BYTES: usize = limits::TUNNEL_RESERVED_BYTES / 2;
/// Space in the window below which a writer waits, so that it does not send tiny events.
const MIN_WRITE_BYTES: usize = 4 << 10;

/// What the peer knows about a tunnel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum TunnelOrigin {
    /// The peer knows it.
    Known,
    /// The peer was asked to open it.
    Opening,
    /// This end accepted it, and the peer has not sent anything for it.
    Announced(ListenId),
}

/// Both directions of a tunnel.
#[derive(Debug)]
pub(super) struct Tunnel {
    pub(super) id: TunnelId,
    pub(super) origin: TunnelOrigin,
    /// Whether it is in the queue of senders.
    pub(super) is_queued: bool,
    /// Why it was closed.
    pub(super) closed: Option<TunnelClosed>,
    /// Nothing is sent or received any more.
    is_ended: bool,
    /// This end has shut down its direction.
    pub(super) is_shut: bool,
    /// This end gave it up after a shutdown: what arrives is dropped.
    pub(super) is_lingering: bool,
    /// An acknowledgement is sent although none is due.
    pub(super) must_acknowledge: bool,
    /// Whether `tunnel/incoming` was sent on this connection.
    is_announced: bool,
    /// Events that the peer has not acknowledged. A shutdown is `None`.
    unacked: VecDeque<Option<Bytes>>,
    /// Number of the last event that the peer acknowledged.
    acked: u64,
    /// Number of the last event sent on this connection, and on any.
    sent: u64,
    highest_sent: u64,
    /// Window bytes of `unacked`.
    unacked_bytes: usize,
    /// Data that the reader has not taken.
    inbox: VecDeque<Bytes>,
    /// Number of the last event of the peer.
    received: u64,
    /// Number of the last event that the reader took.
    delivered: u64,
    /// Number in the last acknowledgement.
    ack_sent: u64,
    /// Whether the last event was a shutdown.
    is_peer_shut: bool,
    /// Window bytes that were received and not acknowledged, and the delivered part of them.
    unread_bytes: usize,
    delivered_bytes: usize,
}

/// Window bytes that a tunnel no longer uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReleasedBytes {
    pub(super) unacked: usize,
    pub(super) unread: usize,
}

impl Tunnel {
    pub(super) fn new(id: TunnelId, origin: TunnelOrigin) -> Self {
        Self {
            id,
            origin,
            is_queued: false,
            closed: None,
            is_ended: false,
            is_shut: false,
            is_lingering: false,
            must_acknowledge: false,
            is_announced: false,
            unacked: VecDeque::new(),
            acked: 0,
            sent: 0,
            highest_sent: 0,
            unacked_bytes: 0,
            inbox: VecDeque::new(),
            received: 0,
            delivered: 0,
            ack_sent: 0,
            is_peer_shut: false,
            unread_bytes: 0,
            delivered_bytes: 0,
        }
    }

    /// Returns the bytes that may be written.
    pub(super) fn capacity(&self, is_shared_free: bool) -> usize {
        let window = match is_shared_free {
            true => limits::TUNNEL_WINDOW_BYTES,
            false => limits::TUNNEL_RESERVED_BYTES,
        };
        let used = self.unacked_bytes + limits::TUNNEL_EVENT_BYTES;
        match window.saturating_sub(used) {
            space if space < MIN_WRITE_BYTES => 0,
            space => space.min(limits::TUNNEL_CHUNK_BYTES),
        }
    }

    /// Writes data and returns its window bytes.
    pub(super) fn write(&mut self, data: Bytes) -> usize {
        if self.is_shut || self.is_ended || data.is_empty() {
            return 0;
        }
        let bytes = window_bytes(&data);
        self.unacked_bytes += bytes;
        self.unacked.push_back(Some(data));
        bytes
    }

    pub(super) fn shutdown(&mut self) {
        if !self.is_shut && !self.is_ended {
            self.is_shut = true;
            self.unacked.push_back(None);
        }
    }

    /// Takes data for the reader.
    pub(super) fn read(&mut self) -> TunnelRead {
        if let Some(data) = self.inbox.pop_front() {
            if !self.is_ended {
                self.delivered += 1;
                self.delivered_bytes += window_bytes(&data);
            }
            return TunnelRead::Data(data);
        }
        if self.is_peer_shut {
            // Only now: a reader that asks for more has passed on what it took before.
            if !self.is_ended {
                self.delivered = self.received;
            }
            return TunnelRead::End;
        }
        match &self.closed {
            Some(closed) => TunnelRead::Closed(closed.clone()),
            None => TunnelRead::Pending,
        }
    }

    /// Drops what arrives from now on.
    pub(super) fn linger(&mut self) {
        self.is_lingering = true;
        self.drop_unwanted();
    }

    fn drop_unwanted(&mut self) {
        while self.is_lingering && matches!(self.read(), TunnelRead::Data(_)) {}
    }

    /// Handles data, or a shutdown. Returns the window bytes that it added; `None` for a
    /// repetition.
    pub(super) fn handle_event(
        &mut self,
        seq: u64,
        data: Option<Bytes>,
    ) -> Result<Option<usize>, String> {
        if seq <= self.received {
            return match seq {
                0 => Err("invalid event 0: events are numbered from 1".to_owned()),
                _ => Ok(None),
            };
        }
        let expected = self.received + 1;
        if self.is_peer_shut {
            return Err(format!("unexpected event {seq} after shutdown"));
        }
        if seq != expected {
            return Err(format!("unexpected event {seq}: expected {expected}"));
        }
        let Some(data) = data else {
            self.received = seq;
            self.is_peer_shut = true;
            self.drop_unwanted();
            return Ok(Some(0));
        };
        let (bytes, max) = (data.len(), limits::TUNNEL_CHUNK_BYTES);
        if bytes > max {
            return Err(format!(
                "chunk {seq} has {bytes} bytes: limit is {max} bytes"
            ));
        }
        let added = window_bytes(&data);
        let max = limits::TUNNEL_WINDOW_BYTES;
        if self.unread_bytes + added > max {
            return Err(format!("event {seq} exceeds the window of {max} bytes"));
        }
        self.received = seq;
        self.unread_bytes += added;
        self.inbox.push_back(data);
        self.drop_unwanted();
        Ok(Some(added))
    }

    /// Handles an acknowledgement. Returns the window bytes that it released.
    pub(super) fn handle_acknowledge(&mut self, seq: u64) -> Result<usize, String> {
        if seq > self.highest_sent {
            let sent = self.highest_sent;
            return Err(format!("event {seq} was acknowledged: {sent} were sent"));
        }
        let mut released = 0;
        while self.acked < seq {
            let event = self.unacked.pop_front().flatten();
            released += event.as_ref().map_or(0, window_bytes);
            self.acked += 1;
        }
        // An event may be acknowledged before it is repeated.
        self.sent = self.sent.max(self.acked);
        self.unacked_bytes -= released;
        Ok(released)
    }

    /// The peer has sent something for the tunnel, so it knows it.
    pub(super) fn handle_confirmed(&mut self) {
        if let TunnelOrigin::Announced(_) = self.origin {
            self.origin = TunnelOrigin::Known;
        }
    }

    pub(super) fn handle_connected(&mut self) {
        self.sent = self.acked;
        self.is_announced = false;
        // Repeats a lost acknowledgement. A peer that lost the tunnel answers with a close.
        self.must_acknowledge = self.origin == TunnelOrigin::Known;
    }

    /// Returns whether an acknowledgement is due.
    pub(super) fn is_ack_due(&self) -> bool {
        let has_more = !self.inbox.is_empty();
        !self.is_ended
            && self.delivered > self.ack_sent
            && (self.delivered_bytes >= ACK_BYTES
                || (!has_more && self.delivered_bytes >= CAUGHT_UP_ACK_BYTES)
                || (self.is_peer_shut && self.delivered == self.received))
    }

    pub(super) fn has_message(&self) -> bool {
        if self.is_ended {
            return false;
        }
        match self.origin {
            TunnelOrigin::Opening => false,
            TunnelOrigin::Announced(_) if !self.is_announced => true,
            TunnelOrigin::Announced(_) | TunnelOrigin::Known => {
                self.must_acknowledge || self.is_ack_due() || self.has_unsent()
            }
        }
    }

    fn has_unsent(&self) -> bool {
        self.acked + (self.unacked.len() as u64) > self.sent
    }

    /// Returns the next message, and the window bytes that it acknowledges.
    pub(super) fn next_message(&mut self) -> Option<(TunnelMessage, usize)> {
        if !self.has_message() {
            return None;
        }
        let tunnel_id = self.id.clone();
        if let TunnelOrigin::Announced(listener) = &self.origin
            && !self.is_announced
        {
            self.is_announced = true;
            let listen_id = listener.clone();
            let incoming = IncomingTunnel {
                listen_id,
                tunnel_id,
            };
            return Some((TunnelMessage::Incoming(incoming), 0));
        }
        if self.must_acknowledge || self.is_ack_due() {
            self.must_acknowledge = false;
            self.ack_sent = self.delivered;
            let acknowledged = std::mem::take(&mut self.delivered_bytes);
            self.unread_bytes -= acknowledged;
            let seq = self.ack_sent;
            let cursor = TunnelCursor { tunnel_id, seq };
            return Some((TunnelMessage::Acknowledge(cursor), acknowledged));
        }
        let index = usize::try_from(self.sent - self.acked).ok()?;
        let event = self.unacked.get(index)?.clone();
        self.sent += 1;
        self.highest_sent = self.highest_sent.max(self.sent);
        let seq = self.sent;
        let message = match event {
            Some(chunk) => TunnelMessage::Data {
                tunnel_id,
                seq,
                chunk,
            },
            None => TunnelMessage::Shutdown(TunnelCursor { tunnel_id, seq }),
        };
        Some((message, 0))
    }

    /// Returns whether both directions were shut down.
    pub(super) fn is_shut_on_both(&self) -> bool {
        self.is_shut && self.is_peer_shut
    }

    /// Returns whether the peer has everything, with the shutdown.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.is_shut && self.unacked.is_empty()
    }

    /// Returns whether both ends have everything.
    pub(super) fn is_done(&self) -> bool {
        let is_delivered = self.is_peer_shut && self.ack_sent == self.received;
        !self.is_ended && self.is_acknowledged() && is_delivered
    }

    /// Returns whether both directions have ended.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Ends both directions. Data that has arrived can still be read.
    pub(super) fn end(&mut self) -> ReleasedBytes {
        self.is_ended = true;
        self.unacked.clear();
        self.delivered_bytes = 0;
        ReleasedBytes {
            unacked: std::mem::take(&mut self.unacked_bytes),
            unread: std::mem::take(&mut self.unread_bytes),
        }
    }
}

#[cfg(test)]
impl Tunnel {
    pub(super) fn unacked_bytes(&self) -> usize {
        self.unacked_bytes
    }

    pub(super) fn unread_bytes(&self) -> usize {
        self.unread_bytes
    }
}

/// Returns what data counts in the window.
fn window_bytes(data: &Bytes) -> usize {
    data.len() + limits::TUNNEL_EVENT_BYTES
}
