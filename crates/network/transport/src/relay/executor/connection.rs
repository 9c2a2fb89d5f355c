//! The driver of one connection: reads, visits streams that have something to send, writes, and
//! watches the clock. What a frame does is decided in `inbound`.

use std::{
    future::poll_fn,
    io,
    sync::Mutex,
    task::{Context, Poll},
};

use exec_relay::{
    frame::{Body, Frame, RESET_PROTOCOL_ERROR, StreamId},
    stream::Delivery,
};
use tokio::time::Instant;

use super::{
    admission::Admission,
    pending::Pending,
    serve::{Ended, Executor, lock},
    streams::Streams,
    vigil::{Outlook, Vigil},
};
use crate::{
    relay::{
        alarm::Alarm,
        cell::Visit,
        turns::{FLUSHES_AT_ONCE, READ_AT_ONCE, SOCKET_BYTES, TURN_BYTES},
    },
    websocket::socket::{Raw, Socket},
};

pub(super) struct Connection<'a> {
    pub(super) executor: &'a Executor,
    pub(super) registration_id: String,
    pub(super) admission: Admission,
    pub(super) pending: Pending,
    streams: &'a Mutex<Streams>,
    socket: Socket,
    /// Wakes when a stream's clock runs out.
    alarm: Alarm,
    vigil: Vigil,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        executor: &'a Executor,
        streams: &'a Mutex<Streams>,
        socket: Socket,
        registration_id: String,
    ) -> Self {
        Self {
            executor,
            registration_id,
            admission: Admission::default(),
            pending: Pending::default(),
            streams,
            socket,
            alarm: Alarm::default(),
            vigil: Vigil::new(Instant::now().into_std()),
        }
    }

    pub(super) async fn run(mut self) -> Ended {
        let executor = self.executor;
        tokio::select! {
            ended = poll_fn(|cx| self.poll(cx)) => ended,
            () = executor.links.closed() => Ended::Unwanted,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        let guard = self.streams;
        let mut streams = lock(guard);
        streams.bell.listen(cx.waker());
        let mut read = 0;
        loop {
            let before = read;
            while read < READ_AT_ONCE {
                match self.socket.reader.poll_message(cx) {
                    Poll::Ready(Ok(Some(Raw::Binary(message)))) => {
                        // What is no valid frame is dropped, as is text.
                        if let Ok(frame) = Frame::decode(message) {
                            self.handle_frame(&mut streams, frame);
                        }
                    }
                    Poll::Ready(Ok(Some(Raw::Text))) => {}
                    Poll::Ready(Ok(None)) => return Poll::Ready(Ended::Closed),
                    Poll::Ready(Err(error)) => return Poll::Ready(Ended::Read(error)),
                    Poll::Pending => break,
                }
                read += 1;
            }
            while let Poll::Ready(judged) = self.pending.poll_judged(cx) {
                self.handle_judged(&mut streams, judged);
            }
            let sent = self.send(&mut streams, cx);
            if let Err(error) = sent {
                return Poll::Ready(Ended::Write(error));
            }
            match self.tick(&mut streams, cx) {
                Ok(Tick::Due) => continue,
                Ok(Tick::Later) => {}
                Err(error) => return Poll::Ready(Ended::Write(error)),
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

    /// Sends what streams have, each in its turn, until the socket takes no more.
    fn send(&mut self, streams: &mut Streams, cx: &mut Context<'_>) -> io::Result<()> {
        for _ in 0..FLUSHES_AT_ONCE {
            let now = Instant::now().into_std();
            let mut visited = false;
            // Streams that found no room before get some by the flush.
            let full = self.socket.writer.buffered() >= SOCKET_BYTES;
            while self.socket.writer.buffered() < SOCKET_BYTES
                && let Some(cell) = streams.bell.next()
            {
                visited = true;
                let writer = &mut self.socket.writer;
                let visit = cell.take_frames(now, TURN_BYTES, |frame| writer.push(frame));
                if visit == Visit::Done && streams.finish(&cell) {
                    self.reset(cell.id().clone());
                }
            }
            if let Poll::Ready(alive) = self.socket.writer.poll_upkeep(cx) {
                alive?;
            }
            if self.socket.writer.buffered() > 0 {
                match self.socket.writer.poll_flush(cx) {
                    Poll::Ready(flushed) => flushed?,
                    Poll::Pending => return Ok(()),
                }
            }
            if !visited && !full {
                return Ok(());
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Looks at the clocks of the streams and of the connection, and sees to it that they are looked at
    /// again.
    fn tick(&mut self, streams: &mut Streams, cx: &mut Context<'_>) -> io::Result<Tick> {
        let now = Instant::now().into_std();
        self.vigil
            .handle_received(self.socket.reader.received(), now);
        // Plain streams would not outlive the connection, so nothing is gained by looking closer.
        let watched = streams.has_active(Delivery::Reliable);
        let vigil = watched.then(|| self.vigil.poll_timeout());
        let Some(next) = vigil.into_iter().chain(streams.poll_timeout()).min() else {
            return Ok(Tick::Later);
        };
        if now < next {
            self.alarm.set(next.into(), cx);
            return Ok(Tick::Later);
        }
        if watched {
            match self.vigil.handle_timeout(now) {
                Outlook::Fine => {}
                Outlook::Ask => self.socket.writer.ping(),
                Outlook::Dead => {
                    let what = "relay gives no sign of life";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, what));
                }
            }
        }
        for cell in streams.due(now) {
            if let Err(error) = cell.handle_timeout(now) {
                tracing::debug!(stream = ?cell.id(), %error, "stream failed");
                streams.end(cell.id(), error.into());
                self.reset(cell.id().clone());
            }
        }
        streams.expire(now);
        Ok(Tick::Due)
    }

    /// Tells a harness that its stream is over, or never was. Best effort: a relay that takes nothing
    /// does not fill our memory.
    pub(super) fn reset(&mut self, stream_id: StreamId) {
        let reason = RESET_PROTOCOL_ERROR.to_owned();
        if self.socket.writer.buffered() < SOCKET_BYTES {
            self.push(&Frame::new(stream_id, Body::Reset { reason }));
        }
    }

    pub(super) fn push(&mut self, frame: &Frame) {
        self.socket.writer.push(frame.encode());
    }
}

/// Whether a clock had run out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Tick {
    Due,
    Later,
}
