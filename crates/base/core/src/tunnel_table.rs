//! The tunnels of one session, at one of its ends.
//!
//! Each direction of a tunnel is a sequence of numbered events: data, and finally a shutdown. The
//! sender retains unacknowledged events, within a window, and repeats them on the next connection.
//! The receiver drops duplicates, and acknowledges the events that its reader consumed. Both ends
//! use this table.
//!
//! Invariant: a reader gets each byte once and in order, or the tunnel is closed with a reason.

mod tunnel;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use exec_wire::{
    id::{ListenId, TunnelId},
    limits,
    tunnel::{CloseTunnel, IncomingTunnel, TunnelCursor, TunnelMessage},
};

use self::tunnel::{Tunnel, TunnelOrigin};

/// Retained close messages. They are repeated on the next connection, because a close has no
/// acknowledgement.
const REMEMBERED_CLOSES: usize = 64;

/// Key of a tunnel in its table. It stays valid until the tunnel is released, also when the id of
/// the tunnel names another one by then.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TunnelKey(u64);

/// The tunnels of a session.
#[derive(Debug, Default)]
pub struct TunnelTable {
    /// All tunnels that are not released, also ended ones.
    tunnels: BTreeMap<TunnelKey, Tunnel>,
    /// Tunnels that the peer may name.
    by_id: BTreeMap<TunnelId, TunnelKey>,
    next_key: u64,
    /// Tunnels that may have something to send, in turn.
    ready: VecDeque<TunnelKey>,
    /// Closes to send. At most one for each id.
    closes: BTreeMap<TunnelId, Option<String>>,
    /// The last closes that were sent.
    sent_closes: VecDeque<CloseTunnel>,
    /// Unacknowledged data of this end, in window bytes.
    unacked: usize,
    /// Data of the peer that this end has not acknowledged, in window bytes.
    unread: usize,
    /// Tunnels with blocked writers: they wait until other tunnels have less unacknowledged data.
    starved: BTreeSet<TunnelKey>,
    is_connected: bool,
    woken: Vec<TunnelWakeup>,
}

/// A tunnel that can go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TunnelWakeup {
    /// There is something to read, or the end.
    Reader(TunnelKey),
    /// There is space for more data, or the tunnel has ended.
    Writer(TunnelKey),
}

/// What a reader gets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TunnelRead {
    /// Bytes.
    Data(Bytes),
    /// Nothing yet.
    Pending,
    /// The peer has shut down its direction.
    End,
    /// The tunnel is closed.
    Closed(TunnelClosed),
}

/// Peer: the tunnel was closed before its end.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{reason}")]
pub struct TunnelClosed {
    /// Why.
    pub reason: String,
}

/// Caller: a tunnel cannot enter the table.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TunnelIdError {
    /// The id names an open tunnel.
    #[error("tunnel id `{0}` is in use")]
    InUse(TunnelId),
    /// The table is full.
    #[error("session is at its limit of {0} tunnels")]
    TooMany(usize),
}

impl TunnelTable {
    /// Adds a tunnel that the peer knows.
    pub fn open(&mut self, id: &TunnelId) -> Result<TunnelKey, TunnelIdError> {
        self.insert(id, TunnelOrigin::Known)
    }

    /// Adds a tunnel that the peer does not know yet. Nothing is sent for it until
    /// [`confirm`](Self::confirm).
    pub fn register(&mut self, id: &TunnelId) -> Result<TunnelKey, TunnelIdError> {
        self.insert(id, TunnelOrigin::Opening)
    }

    /// Adds a tunnel of a listener, and announces it to the peer.
    pub fn announce(
        &mut self,
        id: &TunnelId,
        listener: ListenId,
    ) -> Result<TunnelKey, TunnelIdError> {
        self.insert(id, TunnelOrigin::Announced(listener))
    }

    fn insert(&mut self, id: &TunnelId, origin: TunnelOrigin) -> Result<TunnelKey, TunnelIdError> {
        if self.by_id.contains_key(id) {
            return Err(TunnelIdError::InUse(id.clone()));
        }
        if self.is_full() {
            return Err(TunnelIdError::TooMany(limits::MAX_TUNNELS));
        }
        // A close of an earlier tunnel would close this one.
        self.closes.remove(id);
        self.sent_closes.retain(|close| close.tunnel_id != *id);
        let key = TunnelKey(self.next_key);
        self.next_key += 1;
        self.by_id.insert(id.clone(), key);
        self.tunnels.insert(key, Tunnel::new(id.clone(), origin));
        self.enqueue(key);
        Ok(key)
    }

    /// Records that the peer knows a tunnel.
    pub fn confirm(&mut self, key: TunnelKey) {
        if let Some(tunnel) = self.tunnels.get_mut(&key) {
            tunnel.origin = TunnelOrigin::Known;
            self.enqueue(key);
        }
    }

    /// Returns whether the id names an open tunnel.
    pub fn contains(&self, id: &TunnelId) -> bool {
        self.by_id.contains_key(id)
    }

    /// Returns whether no tunnel may be added.
    pub fn is_full(&self) -> bool {
        self.by_id.len() >= limits::MAX_TUNNELS
    }

    /// Returns the number of open tunnels.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns whether no tunnel is open.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns the data that this table holds, in window bytes.
    pub fn held_bytes(&self) -> usize {
        self.unacked + self.unread
    }

    /// Returns what changed for readers and writers since the last call.
    pub fn take_woken(&mut self) -> Vec<TunnelWakeup> {
        std::mem::take(&mut self.woken)
    }
}

/// The local end.
impl TunnelTable {
    /// Returns the number of bytes that may be written now. 0 means to wait.
    pub fn capacity(&mut self, key: TunnelKey) -> Result<usize, TunnelClosed> {
        let is_shared_free = self.unacked < limits::TUNNELS_SHARED_BYTES;
        let Some(tunnel) = self.tunnels.get_mut(&key) else {
            return Err(released());
        };
        if let Some(closed) = &tunnel.closed {
            return Err(closed.clone());
        }
        let capacity = tunnel.capacity(is_shared_free);
        if capacity == 0 && !is_shared_free {
            self.starved.insert(key);
        }
        Ok(capacity)
    }

    /// Writes data, at most as much as [`capacity`](Self::capacity) returned. Ignores data after a
    /// shutdown.
    pub fn write(&mut self, key: TunnelKey, data: Bytes) {
        if let Some(tunnel) = self.tunnels.get_mut(&key) {
            self.unacked += tunnel.write(data);
            self.enqueue(key);
        }
    }

    /// Ends the direction to the peer after the data so far.
    pub fn shutdown(&mut self, key: TunnelKey) {
        if let Some(tunnel) = self.tunnels.get_mut(&key) {
            tunnel.shutdown();
            self.enqueue(key);
        }
    }

    /// Returns the next data of the peer.
    pub fn read(&mut self, key: TunnelKey) -> TunnelRead {
        let Some(tunnel) = self.tunnels.get_mut(&key) else {
            return TunnelRead::Closed(released());
        };
        let read = tunnel.read();
        if tunnel.is_ack_due() {
            self.enqueue(key);
        }
        read
    }

    /// Returns why a tunnel is closed, if it is.
    pub fn closed(&self, key: TunnelKey) -> Option<TunnelClosed> {
        match self.tunnels.get(&key) {
            Some(tunnel) => tunnel.closed.clone(),
            None => Some(released()),
        }
    }

    /// Closes a tunnel now. Undelivered data is lost.
    pub fn close(&mut self, key: TunnelKey, reason: Option<String>) {
        let text = reason.clone().unwrap_or_else(|| RELEASED.to_owned());
        if let Some(id) = self.end(key, text) {
            self.send_close(id, reason);
        }
    }

    /// Gives a tunnel up at this end. After a shutdown, data on its way to the peer is still
    /// delivered; otherwise the tunnel is closed now.
    pub fn release(&mut self, key: TunnelKey) {
        let Some(tunnel) = self.tunnels.get_mut(&key) else {
            return;
        };
        if tunnel.is_ended() {
        } else if tunnel.origin == TunnelOrigin::Opening {
            // The peer does not know it, or will learn that this end does not.
            self.end(key, RELEASED.to_owned());
        } else if tunnel.is_shut {
            tunnel.linger();
            self.enqueue(key);
            return self.finish_if_done(key);
        } else {
            self.close(key, None);
        }
        self.remove(key);
    }

    /// Closes a listener of the peer, or a tunnel that this end does not know.
    pub fn send_close(&mut self, id: TunnelId, reason: Option<String>) {
        // Above the bound the peer learns it with its next message.
        if self.closes.len() < limits::MAX_TUNNELS {
            // The first reason stays: data that follows it is about an unknown tunnel.
            self.closes.entry(id).or_insert(reason.map(cut_reason));
        }
    }

    /// Closes all tunnels without a word to the peer, because the session has ended.
    pub fn fail_all(&mut self, reason: &str) {
        let keys: Vec<_> = self.by_id.values().copied().collect();
        for key in keys {
            self.end(key, reason.to_owned());
        }
        self.closes.clear();
        self.sent_closes.clear();
    }

    /// Ends a tunnel, which the peer cannot name any more. Returns its id if it was open.
    fn end(&mut self, key: TunnelKey, reason: String) -> Option<TunnelId> {
        let tunnel = self.tunnels.get_mut(&key)?;
        if tunnel.is_ended() {
            return None;
        }
        tunnel.closed = Some(TunnelClosed { reason });
        self.release_id(key)
    }

    /// Takes the id and the windows of a tunnel that has ended.
    fn release_id(&mut self, key: TunnelKey) -> Option<TunnelId> {
        let tunnel = self.tunnels.get_mut(&key)?;
        let id = tunnel.id.clone();
        let released = tunnel.end();
        self.unacked -= released.unacked;
        self.unread -= released.unread;
        self.by_id.remove(&id);
        if tunnel.is_lingering {
            self.remove(key);
        } else {
            let wakeups = [TunnelWakeup::Reader(key), TunnelWakeup::Writer(key)];
            self.woken.extend(wakeups);
        }
        self.wake_starved();
        Some(id)
    }

    fn remove(&mut self, key: TunnelKey) {
        self.starved.remove(&key);
        if self
            .tunnels
            .remove(&key)
            .is_some_and(|tunnel| tunnel.is_queued)
        {
            self.ready.retain(|ready| *ready != key);
        }
    }
}

/// Messages of the peer.
impl TunnelTable {
    /// Handles a message of the peer. Not for `tunnel/incoming`: see [`announce`](Self::announce)
    /// and [`handle_incoming`](Self::handle_incoming).
    pub fn handle_message(&mut self, message: TunnelMessage) {
        match message {
            TunnelMessage::Data {
                tunnel_id,
                seq,
                chunk,
            } => self.handle_event(&tunnel_id, seq, Some(chunk)),
            TunnelMessage::Shutdown(cursor) => {
                self.handle_event(&cursor.tunnel_id, cursor.seq, None)
            }
            TunnelMessage::Acknowledge(cursor) => self.handle_acknowledge(&cursor),
            TunnelMessage::Close(close) => self.handle_close(close),
            TunnelMessage::Incoming(_) => {}
        }
    }

    /// Adds a tunnel that the peer has announced. Returns `None` if it repeated itself.
    pub fn handle_incoming(
        &mut self,
        incoming: &IncomingTunnel,
    ) -> Result<Option<TunnelKey>, TunnelIdError> {
        if self.contains(&incoming.tunnel_id) {
            return Ok(None);
        }
        let key = self.open(&incoming.tunnel_id)?;
        if let Some(tunnel) = self.tunnels.get_mut(&key) {
            // Confirms it.
            tunnel.must_acknowledge = true;
        }
        Ok(Some(key))
    }

    fn handle_event(&mut self, id: &TunnelId, seq: u64, data: Option<Bytes>) {
        let Some((key, tunnel)) = find(&self.by_id, &mut self.tunnels, id) else {
            return self.send_close(id.clone(), Some(UNKNOWN.to_owned()));
        };
        tunnel.handle_confirmed();
        let added = match tunnel.handle_event(seq, data) {
            Ok(Some(added)) => added,
            // A repetition: the acknowledgement may have been lost.
            Ok(None) => return,
            Err(violation) => return self.close(key, Some(violation)),
        };
        let is_ack_due = tunnel.is_ack_due();
        self.unread += added;
        if self.unread > limits::MAX_TUNNELS_BYTES {
            let max = limits::MAX_TUNNELS_BYTES;
            let text = format!("all tunnels together exceed their window of {max} bytes");
            return self.close(key, Some(text));
        }
        self.woken.push(TunnelWakeup::Reader(key));
        if is_ack_due {
            self.enqueue(key);
        }
    }

    fn handle_acknowledge(&mut self, cursor: &TunnelCursor) {
        let TunnelCursor { tunnel_id, seq } = cursor;
        let Some((key, tunnel)) = find(&self.by_id, &mut self.tunnels, tunnel_id) else {
            return self.send_close(tunnel_id.clone(), Some(UNKNOWN.to_owned()));
        };
        tunnel.handle_confirmed();
        match tunnel.handle_acknowledge(*seq) {
            Ok(0) => {}
            Ok(released) => {
                self.unacked -= released;
                self.woken.push(TunnelWakeup::Writer(key));
                self.wake_starved();
            }
            Err(violation) => return self.close(key, Some(violation)),
        }
        self.finish_if_done(key);
    }

    fn handle_close(&mut self, close: CloseTunnel) {
        let Some(key) = self.by_id.get(&close.tunnel_id).copied() else {
            return;
        };
        let is_ended = self.tunnels.get(&key).is_some_and(Tunnel::is_shut_on_both);
        let reason = match close.reason {
            Some(reason) => cut_reason(reason),
            None => CLOSED.to_owned(),
        };
        if is_ended {
            // Both directions have ended: this is how the peer says that it has everything.
            self.release_id(key);
        } else {
            self.end(key, reason);
        }
    }

    /// Ends a tunnel without an error when both ends have everything.
    fn finish_if_done(&mut self, key: TunnelKey) {
        let Some(tunnel) = self.tunnels.get(&key) else {
            return;
        };
        if tunnel.is_done() {
            self.release_id(key);
        } else if tunnel.is_lingering && tunnel.is_acknowledged() {
            // The peer has received everything, and this end discards further data.
            self.close(key, None);
        }
    }
}

/// The connection.
impl TunnelTable {
    /// Begins a connection: everything that the peer may have missed is sent again.
    pub fn handle_connected(&mut self) {
        self.is_connected = true;
        for close in self.sent_closes.drain(..) {
            self.closes.entry(close.tunnel_id).or_insert(close.reason);
        }
        let keys: Vec<_> = self.by_id.values().copied().collect();
        for key in keys {
            if let Some(tunnel) = self.tunnels.get_mut(&key) {
                tunnel.handle_connected();
                self.enqueue(key);
            }
        }
    }

    /// Ends a connection. Nothing is sent until the next one.
    pub fn handle_disconnected(&mut self) {
        self.is_connected = false;
    }

    /// Returns whether [`poll_message`](Self::poll_message) may return one.
    pub fn has_messages(&self) -> bool {
        self.is_connected && (!self.closes.is_empty() || !self.ready.is_empty())
    }

    /// Returns the next message, one tunnel after the other.
    pub fn poll_message(&mut self) -> Option<TunnelMessage> {
        if !self.is_connected {
            return None;
        }
        if let Some((tunnel_id, reason)) = self.closes.pop_first() {
            let close = CloseTunnel { tunnel_id, reason };
            if self.sent_closes.len() >= REMEMBERED_CLOSES {
                self.sent_closes.pop_front();
            }
            self.sent_closes.push_back(close.clone());
            return Some(TunnelMessage::Close(close));
        }
        while let Some(key) = self.ready.pop_front() {
            let Some(tunnel) = self.tunnels.get_mut(&key) else {
                continue;
            };
            tunnel.is_queued = false;
            let Some((message, acknowledged)) = tunnel.next_message() else {
                continue;
            };
            self.unread -= acknowledged;
            self.enqueue(key);
            if acknowledged > 0 || matches!(message, TunnelMessage::Acknowledge(_)) {
                self.finish_if_done(key);
            }
            return Some(message);
        }
        None
    }

    /// Puts a tunnel at the end of the queue of senders.
    fn enqueue(&mut self, key: TunnelKey) {
        if let Some(tunnel) = self.tunnels.get_mut(&key)
            && !tunnel.is_queued
            && tunnel.has_message()
        {
            tunnel.is_queued = true;
            self.ready.push_back(key);
        }
    }

    /// Wakes the writers that wait for other tunnels, if there is space again.
    fn wake_starved(&mut self) {
        if self.unacked < limits::TUNNELS_SHARED_BYTES {
            let starved = std::mem::take(&mut self.starved);
            self.woken
                .extend(starved.into_iter().map(TunnelWakeup::Writer));
        }
    }
}

fn find<'a>(
    by_id: &BTreeMap<TunnelId, TunnelKey>,
    tunnels: &'a mut BTreeMap<TunnelKey, Tunnel>,
    id: &TunnelId,
) -> Option<(TunnelKey, &'a mut Tunnel)> {
    let key = *by_id.get(id)?;
    Some((key, tunnels.get_mut(&key)?))
}

/// Reason for messages about a tunnel that this end does not have.
const UNKNOWN: &str = "unknown tunnel";
/// Reason of a tunnel that the peer closed without one.
const CLOSED: &str = "tunnel was closed by the other end";
/// Reason of a tunnel that this end closed.
const RELEASED: &str = "tunnel is closed";

fn released() -> TunnelClosed {
    TunnelClosed {
        reason: RELEASED.to_owned(),
    }
}

fn cut_reason(mut reason: String) -> String {
    let end = reason.floor_char_boundary(limits::MAX_TUNNEL_REASON_BYTES);
    reason.truncate(end);
    reason
}
