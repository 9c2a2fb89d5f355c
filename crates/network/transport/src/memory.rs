//! In-process links, for embedding and tests.

use std::{
    collections::VecDeque,
    io,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use exec_wire::outgoing_message::OutgoingMessage;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use crate::link::{BinarySupport, DataEncoding, Link, LinkReadError, MessageReader, MessageWriter};

/// Capacity of each direction in messages.
const CHANNEL_CAPACITY: usize = 64;

/// Makes the two ends of a link.
pub fn pair() -> (Link, Link) {
    let (here, there) = (
        mpsc::channel(CHANNEL_CAPACITY),
        mpsc::channel(CHANNEL_CAPACITY),
    );
    (link_end(here.0, there.1), link_end(there.0, here.1))
}

fn link_end(sender: mpsc::Sender<Bytes>, receiver: mpsc::Receiver<Bytes>) -> Link {
    let writer = MemoryWriter {
        sender: Some(PolledSender::new(sender)),
        queue: VecDeque::new(),
        queued_bytes: 0,
    };
    Link::new(
        receiver,
        writer,
        "memory".to_owned(),
        BinarySupport::Supported,
    )
}

impl MessageReader for mpsc::Receiver<Bytes> {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, LinkReadError>> {
        self.poll_recv(cx).map(Ok)
    }
}

#[derive(Debug)]
struct MemoryWriter {
    sender: Option<PolledSender>,
    queue: VecDeque<Bytes>,
    queued_bytes: usize,
}

impl MessageWriter for MemoryWriter {
    fn push(&mut self, message: OutgoingMessage, encoding: DataEncoding) {
        let mut text = Vec::with_capacity(message.text_len());
        encoding.encode(&message, &mut text);
        self.queued_bytes += text.len();
        self.queue.push_back(text.into());
    }

    fn buffered(&self) -> usize {
        self.queued_bytes
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let broken_pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        while let Some(message) = self.queue.front() {
            let sender = self.sender.as_mut().ok_or_else(broken_pipe)?;
            let length = message.len();
            ready!(sender.poll_send(cx, message.clone())).map_err(|()| broken_pipe())?;
            self.queue.pop_front();
            self.queued_bytes -= length;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_keepalive(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(self.poll_flush(cx));
        self.sender = None;
        Poll::Ready(flushed)
    }
}

type ReserveFuture =
    BoxFuture<'static, Result<mpsc::OwnedPermit<Bytes>, mpsc::error::SendError<()>>>;

/// A sender that can be polled for capacity.
struct PolledSender {
    sender: mpsc::Sender<Bytes>,
    reserve: Option<ReserveFuture>,
}

impl std::fmt::Debug for PolledSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolledSender")
            .field("sender", &self.sender)
            .finish_non_exhaustive()
    }
}

impl PolledSender {
    fn new(sender: mpsc::Sender<Bytes>) -> Self {
        Self {
            sender,
            reserve: None,
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, message: Bytes) -> Poll<Result<(), ()>> {
        let mut reserve = self
            .reserve
            .take()
            .unwrap_or_else(|| Box::pin(self.sender.clone().reserve_owned()));
        match reserve.as_mut().poll(cx) {
            Poll::Ready(Ok(permit)) => {
                drop(permit.send(message));
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(())),
            Poll::Pending => {
                self.reserve = Some(reserve);
                Poll::Pending
            }
        }
    }
}
