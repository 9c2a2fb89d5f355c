//! The driver of one stream: reads, writes, watches the clock, and comes back after a loss.

use std::{
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use exec_relay::{
    frame::{Body, Frame, RESET_CLOSED},
    stream::Delivery,
};
use futures_util::future::BoxFuture;
use tokio::{sync::watch, time::Instant};

use super::reconnect::{Reopen, Search};
use crate::{
    link::Path,
    relay::{
        Alarm, End, FLUSHES_AT_ONCE, READ_AT_ONCE, SOCKET_BYTES,
        stream_shared::{Bell, Cell, Visit},
    },
    websocket::socket::{Raw, Socket},
};

/// How long an executor that acknowledges may be silent before another websocket is tried. It sends a
/// heartbeat every ten seconds, and gives us up after thirty: a path that died without a word is
/// replaced in time for the stream to live on.
const STALE: Duration = Duration::from_secs(15);
/// Messages that may be in front of the answer to a ping: as the stock harness.
const LOOKED_AT: usize = 32;

pub(super) struct Driver {
    cell: Arc<Cell>,
    bell: Arc<Bell>,
    delivery: Delivery,
    line: Line,
    reopen: Reopen,
    /// Wakes when the stream's clock runs out.
    alarm: Alarm,
    /// When the executor was last heard on this websocket, or the websocket was opened.
    heard: Instant,
    /// Set from the loss of a websocket until the executor is heard on another.
    search: Option<Search>,
    /// The same, for others.
    path: watch::Sender<Path>,
    is_closing: bool,
}

enum Line {
    Up(Box<Socket>),
    Down(BoxFuture<'static, Result<(Socket, Search), End>>),
}

/// Why a websocket is of no more use.
enum Broken {
    /// It is lost; another one may do.
    Lost,
    /// The stream is over.
    Over(End),
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Lost
    }
}

impl Driver {
    pub(super) fn new(
        cell: Arc<Cell>,
        bell: Arc<Bell>,
        delivery: Delivery,
        socket: Socket,
        reopen: Reopen,
        path: watch::Sender<Path>,
    ) -> Self {
        Self {
            cell,
            bell,
            delivery,
            line: Line::Up(Box::new(socket)),
            reopen,
            alarm: Alarm::default(),
            heard: Instant::now(),
            search: None,
            path,
            is_closing: false,
        }
    }

    pub(super) async fn run(mut self) {
        let end = poll_fn(|cx| self.poll(cx)).await;
        tracing::debug!(stream = ?self.cell.id(), reason = %end, "stream ended");
        self.cell.end(end);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.bell.listen(cx.waker());
        loop {
            match &mut self.line {
                Line::Up(_) => match ready!(self.poll_up(cx)) {
                    Broken::Over(end) => return Poll::Ready(end),
                    Broken::Lost if self.is_closing => return Poll::Ready(End::Closed),
                    Broken::Lost if self.delivery == Delivery::Plain => {
                        return Poll::Ready(End::Lost);
                    }
                    Broken::Lost => {
                        self.cell.handle_disconnect(Instant::now().into_std());
                        self.set_path(Path::Lost);
                        let search = self.search.unwrap_or_else(|| self.reopen.search());
                        self.line = Line::Down(Box::pin(self.reopen.clone().run(search)));
                    }
                },
                Line::Down(reopening) => {
                    if self.cell.is_left() {
                        return Poll::Ready(End::Closed);
                    }
                    let (socket, search) = match ready!(reopening.as_mut().poll(cx)) {
                        Ok(opened) => opened,
                        Err(end) => return Poll::Ready(end),
                    };
                    self.search = Some(search);
                    self.line = Line::Up(Box::new(socket));
                    self.heard = Instant::now();
                    self.cell.handle_reconnect(self.heard.into_std());
                }
            }
        }
    }

    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Broken> {
        let mut read = 0;
        loop {
            let before = read;
            while read < READ_AT_ONCE {
                match self.read(cx) {
                    Poll::Ready(Ok(())) => read += 1,
                    Poll::Ready(Err(broken)) => return Poll::Ready(broken),
                    Poll::Pending => break,
                }
            }
            match self.send(cx) {
                Ok(Poll::Ready(())) if self.is_closing => {
                    return Poll::Ready(Broken::Over(End::Closed));
                }
                Ok(_) => {}
                Err(broken) => return Poll::Ready(broken),
            }
            match self.tick(cx) {
                Ok(Tick::Due) => continue,
                Ok(Tick::Later) => {}
                Err(broken) => return Poll::Ready(broken),
            }
            if read == READ_AT_ONCE {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if read == before {
                return Poll::Pending;
            }
        }
    }

    fn set_path(&self, path: Path) {
        self.path
            .send_if_modified(|before| std::mem::replace(before, path) != path);
    }

    /// Handles the next message of the relay, if there is room for it.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        // A stock executor sends on and on; what holds it up is a socket that nobody reads.
        if self.cell.is_crowded() {
            return Poll::Pending;
        }
        self.take(cx)
    }

    /// Handles the next message of the relay.
    fn take(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let Line::Up(socket) = &mut self.line else {
            return Poll::Pending;
        };
        let message = match ready!(socket.reader.poll_message(cx)) {
            Ok(Some(Raw::Binary(message))) => message,
            Ok(Some(Raw::Text)) => return over("relay sends text"),
            Ok(None) | Err(_) => return Poll::Ready(Err(Broken::Lost)),
        };
        let Ok(frame) = Frame::decode(message) else {
            return over("relay sends what is no frame");
        };
        if frame.stream_id != *self.cell.id() {
            return Poll::Ready(Ok(()));
        }
        match &frame.body {
            Body::Reset { .. } => return Poll::Ready(Err(Broken::Over(End::Reset))),
            Body::Handshake(_) => return over("executor shakes hands twice"),
            Body::Data(_) if self.delivery == Delivery::Plain && !frame.is_plain() => {
                return over("executor sends segments that were not agreed on");
            }
            Body::Data(_) | Body::Ack | Body::Resume { .. } | Body::Heartbeat => {}
        }
        self.heard = Instant::now();
        if self.search.take().is_some() {
            self.set_path(Path::There);
        }
        let handled = self.cell.handle_frame(frame, self.heard.into_std());
        Poll::Ready(handled.map_err(|error| Broken::Over(error.into())))
    }

    /// Sends what the stream has, until the socket takes no more. Ready when everything is sent.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Broken> {
        for _ in 0..FLUSHES_AT_ONCE {
            self.upkeep(cx)?;
            let Line::Up(socket) = &mut self.line else {
                return Ok(Poll::Pending);
            };
            let mut visited = false;
            // What found no room before gets some by the flush.
            let full = socket.writer.buffered() >= SOCKET_BYTES;
            while socket.writer.buffered() < SOCKET_BYTES && self.bell.next().is_some() {
                visited = true;
                let room = SOCKET_BYTES - socket.writer.buffered();
                let now = Instant::now().into_std();
                let push = |frame| socket.writer.push(frame);
                if self.cell.take_frames(now, room, push) == Visit::Done && !self.is_closing {
                    self.is_closing = true;
                    if self.delivery == Delivery::Reliable {
                        let reason = RESET_CLOSED.to_owned();
                        let last = Frame::new(self.cell.id().clone(), Body::Reset { reason });
                        socket.writer.push(last.encode());
                    }
                }
            }
            if socket.writer.buffered() > 0 {
                match socket.writer.poll_flush(cx) {
                    Poll::Ready(flushed) => flushed?,
                    Poll::Pending => return Ok(Poll::Pending),
                }
            }
            if !visited && !full {
                return Ok(Poll::Ready(()));
            }
        }
        cx.waker().wake_by_ref();
        Ok(Poll::Pending)
    }

    /// Sees to pings and their answers. Before a relay is given up for answering none, messages that are
    /// here already are looked at, wanted or not: the answer may wait behind them.
    fn upkeep(&mut self, cx: &mut Context<'_>) -> Result<(), Broken> {
        let mut looked_at = 0;
        loop {
            let Line::Up(socket) = &mut self.line else {
                return Ok(());
            };
            let Poll::Ready(Err(error)) = socket.writer.poll_upkeep(cx) else {
                return Ok(());
            };
            if looked_at == LOOKED_AT {
                return Err(error.into());
            }
            match self.take(cx) {
                Poll::Ready(taken) => {
                    taken?;
                    looked_at += 1;
                }
                // The answer may have been the last that was here.
                Poll::Pending => looked_at = LOOKED_AT,
            }
        }
    }

    /// Looks at the clock of the stream, and sees to it that it is looked at again.
    fn tick(&mut self, cx: &mut Context<'_>) -> Result<Tick, Broken> {
        // Plain streams have no clock.
        let Some(next) = self.cell.poll_timeout() else {
            return Ok(Tick::Later);
        };
        let now = Instant::now();
        let mut stale = self.heard + STALE;
        if let Some(search) = self.search {
            stale = stale.min(search.until);
        }
        if now >= stale {
            // A search whose time is over ends the stream.
            return Err(Broken::Lost);
        }
        if now.into_std() < next {
            self.alarm.set(stale.min(next.into()), cx);
            return Ok(Tick::Later);
        }
        let handled = self.cell.handle_timeout(now.into_std());
        handled.map_err(|error| Broken::Over(error.into()))?;
        Ok(Tick::Due)
    }
}

/// Whether the clock had run out.
enum Tick {
    Due,
    Later,
}

fn over(what: &'static str) -> Poll<Result<(), Broken>> {
    Poll::Ready(Err(Broken::Over(End::Protocol(what))))
}
