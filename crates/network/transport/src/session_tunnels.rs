//! The tunnels of a session as byte streams, over the session's current link.
//!
//! Both ends use it: [`SessionTunnels`] is the session's table, [`TunnelEnd`] one end of a tunnel,
//! and [`TunnelSender`] the source of messages for the current connection's writer. The rules are
//! in [`exec_core::tunnel_table`].

mod pump;

pub use self::pump::pump;

use std::{
    collections::HashMap,
    fmt, io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::{Buf, Bytes};
use exec_core::tunnel_table::{
    TunnelClosed, TunnelIdError, TunnelKey, TunnelRead, TunnelTable, TunnelWakeup,
};
use exec_wire::{
    id::{ListenId, TunnelId},
    outgoing_message::OutgoingMessage,
    tunnel::{IncomingTunnel, TunnelMessage},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The tunnels of a session. Clones share them.
#[derive(Clone, Default)]
pub struct SessionTunnels {
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for SessionTunnels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionTunnels")
            .field("open", &self.lock().table.len())
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    table: TunnelTable,
    tasks: HashMap<TunnelKey, TunnelTasks>,
    /// The writer of the current connection, and the number of that connection.
    sender: Option<Waker>,
    connection: u64,
    /// Tasks that wait until a tunnel may be added.
    waiting_for_space: Vec<Waker>,
}

/// Tasks that wait for a tunnel.
#[derive(Default)]
struct TunnelTasks {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl SessionTunnels {
    /// Adds a tunnel that the peer knows.
    pub fn open(&self, id: &TunnelId) -> Result<TunnelEnd, TunnelIdError> {
        let key = self.update(|table| table.open(id))?;
        Ok(self.end(key))
    }

    /// Adds a tunnel that the peer is about to open. It is silent until [`TunnelEnd::confirm`].
    pub fn register(&self, id: &TunnelId) -> Result<TunnelEnd, TunnelIdError> {
        let key = self.update(|table| table.register(id))?;
        Ok(self.end(key))
    }

    /// Adds a tunnel of a listener, and announces it to the peer.
    pub fn announce(&self, id: &TunnelId, listener: ListenId) -> Result<TunnelEnd, TunnelIdError> {
        let key = self.update(|table| table.announce(id, listener))?;
        Ok(self.end(key))
    }

    /// Adds a tunnel that the peer announced. Returns `None` if it repeated itself. Refuses it if
    /// there are too many.
    pub fn handle_incoming(&self, incoming: &IncomingTunnel) -> Option<TunnelEnd> {
        let added = self.update(|table| table.handle_incoming(incoming));
        match added {
            Ok(key) => key.map(|key| self.end(key)),
            Err(error) => {
                self.send_close(incoming.tunnel_id.clone(), Some(error.to_string()));
                None
            }
        }
    }

    /// Handles a message of the peer.
    pub fn handle_message(&self, message: TunnelMessage) {
        self.update(|table| table.handle_message(message));
    }

    /// Closes what the peer has with this id.
    pub fn send_close(&self, id: TunnelId, reason: Option<String>) {
        self.update(|table| table.send_close(id, reason));
    }

    /// Returns whether the id names an open tunnel.
    pub fn contains(&self, id: &TunnelId) -> bool {
        self.lock().table.contains(id)
    }

    /// Returns the number of open tunnels.
    pub fn len(&self) -> usize {
        self.lock().table.len()
    }

    /// Returns whether no tunnel is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that the tunnels hold in memory.
    pub fn held_bytes(&self) -> usize {
        self.lock().table.held_bytes()
    }

    /// Waits until a tunnel may be added.
    pub fn poll_space(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if !state.table.is_full() {
            return Poll::Ready(());
        }
        let waiting = &mut state.waiting_for_space;
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Closes all tunnels because the session has ended.
    pub fn fail_all(&self, reason: &str) {
        self.update(|table| table.fail_all(reason));
    }

    /// Begins a connection. Everything that the peer may have missed is sent again.
    pub fn connect(&self) -> TunnelSender {
        let connection = self.update_state(|state| {
            state.connection += 1;
            state.table.handle_connected();
            state.connection
        });
        TunnelSender {
            tunnels: self.clone(),
            connection,
        }
    }

    fn end(&self, key: TunnelKey) -> TunnelEnd {
        TunnelEnd {
            tunnels: self.clone(),
            key,
            unread: Bytes::new(),
        }
    }

    /// Changes the table, and wakes the tasks that can go on.
    fn update<R>(&self, change: impl FnOnce(&mut TunnelTable) -> R) -> R {
        self.update_state(|state| change(&mut state.table))
    }

    fn update_state<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state);
        let woken = state.take_ready();
        // Released first, so that no task waits for the lock.
        drop(state);
        woken.wake();
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Ignores poisoning: no code panics under the lock, and the state would still be
        // consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tasks_of(&mut self, key: TunnelKey) -> &mut TunnelTasks {
        self.tasks.entry(key).or_default()
    }

    /// Takes the wakers of the tasks that can go on.
    fn take_ready(&mut self) -> ReadyWakers {
        let mut tasks = Vec::new();
        for wakeup in self.table.take_woken() {
            let (TunnelWakeup::Reader(key) | TunnelWakeup::Writer(key)) = wakeup;
            if let Some(waiting) = self.tasks.get_mut(&key) {
                tasks.extend(match wakeup {
                    TunnelWakeup::Reader(_) => waiting.reader.take(),
                    TunnelWakeup::Writer(_) => waiting.writer.take(),
                });
            }
        }
        if !self.waiting_for_space.is_empty() && !self.table.is_full() {
            tasks.append(&mut self.waiting_for_space);
        }
        let has_messages = self.table.has_messages();
        let sender = self.sender.take_if(|_| has_messages);
        ReadyWakers { tasks, sender }
    }
}

/// Wakers of tasks that can go on, to be called without the lock.
struct ReadyWakers {
    tasks: Vec<Waker>,
    sender: Option<Waker>,
}

impl ReadyWakers {
    fn wake(self) {
        self.tasks
            .into_iter()
            .chain(self.sender)
            .for_each(Waker::wake);
    }
}

/// Source of the tunnel messages of one connection. Dropping it ends the connection.
#[derive(Debug)]
pub struct TunnelSender {
    tunnels: SessionTunnels,
    connection: u64,
}

impl TunnelSender {
    /// Returns the next message. Pending forever once the session has another connection.
    pub fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<OutgoingMessage> {
        let message = self.tunnels.update_state(|state| {
            if state.connection != self.connection {
                return None;
            }
            let message = state.table.poll_message();
            if message.is_none() {
                state.sender = Some(cx.waker().clone());
            }
            message
        });
        message.map_or(Poll::Pending, |message| Poll::Ready(message.encode()))
    }
}

impl Drop for TunnelSender {
    fn drop(&mut self) {
        let mut state = self.tunnels.lock();
        if state.connection == self.connection {
            state.table.handle_disconnected();
            state.sender = None;
        }
    }
}

/// One end of a tunnel. After a shutdown, dropping it still delivers the written data; otherwise it
/// closes both directions at once.
#[derive(Debug)]
pub struct TunnelEnd {
    tunnels: SessionTunnels,
    key: TunnelKey,
    /// Rest of the data that was taken last.
    unread: Bytes,
}

impl TunnelEnd {
    /// Records that the peer has opened the tunnel.
    pub fn confirm(&self) {
        self.tunnels.update(|table| table.confirm(self.key));
    }

    /// Returns the next data, or `None` at the end.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if self.unread.has_remaining() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.unread))));
        }
        let read = self.tunnels.update_state(|state| {
            let read = state.table.read(self.key);
            if read == TunnelRead::Pending {
                state.tasks_of(self.key).reader = Some(cx.waker().clone());
            }
            read
        });
        match read {
            TunnelRead::Data(data) => Poll::Ready(Ok(Some(data))),
            TunnelRead::Pending => Poll::Pending,
            TunnelRead::End => Poll::Ready(Ok(None)),
            TunnelRead::Closed(closed) => {
                let error = io::Error::new(io::ErrorKind::ConnectionReset, closed);
                Poll::Ready(Err(error))
            }
        }
    }

    /// Waits until the tunnel is closed before its end. Shares the place of its waker with
    /// [`poll_data`](Self::poll_data), so one task calls both.
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<TunnelClosed> {
        let mut state = self.tunnels.lock();
        match state.table.closed(self.key) {
            Some(closed) => Poll::Ready(closed),
            None => {
                state.tasks_of(self.key).reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Waits for space in the window. Returns the number of bytes that may be written.
    pub fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut state = self.tunnels.lock();
        match state.table.capacity(self.key) {
            Ok(0) => {
                state.tasks_of(self.key).writer = Some(cx.waker().clone());
                Poll::Pending
            }
            Ok(capacity) => Poll::Ready(Ok(capacity)),
            Err(closed) => {
                let error = io::Error::new(io::ErrorKind::BrokenPipe, closed);
                Poll::Ready(Err(error))
            }
        }
    }

    /// Writes data, at most as much as [`poll_capacity`](Self::poll_capacity) returned.
    pub fn write(&self, data: Bytes) {
        self.tunnels.update(|table| table.write(self.key, data));
    }

    /// Ends the direction to the peer after the data so far.
    pub fn shutdown(&self) {
        self.tunnels.update(|table| table.shutdown(self.key));
    }

    /// Closes both directions now, with a reason for the peer.
    pub fn close(&self, reason: String) {
        self.tunnels
            .update(|table| table.close(self.key, Some(reason)));
    }
}

impl AsyncRead for TunnelEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        // Fill the buffer: one read of small events is better than many.
        let mut is_filled = false;
        while buf.remaining() > 0 {
            match self.poll_data(cx) {
                Poll::Ready(Ok(Some(mut data))) => {
                    let taken = data.split_to(data.len().min(buf.remaining()));
                    buf.put_slice(&taken);
                    self.unread = data;
                    is_filled = true;
                }
                // The end and errors are reported again.
                Poll::Ready(_) | Poll::Pending if is_filled => break,
                Poll::Ready(Ok(None)) => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TunnelEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_capacity(cx).map_ok(|capacity| {
            let written = buf.len().min(capacity);
            self.write(Bytes::copy_from_slice(&buf[..written]));
            written
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::shutdown(&self);
        Poll::Ready(Ok(()))
    }
}

impl Drop for TunnelEnd {
    fn drop(&mut self) {
        self.tunnels.lock().tasks.remove(&self.key);
        self.tunnels.update(|table| table.release(self.key));
    }
}
