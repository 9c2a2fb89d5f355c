//! Links between two ends in one process, for embedding and for tests.

use std::{
    collections::VecDeque,
    io,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use exec_wire::outgoing::Outgoing;
use tokio::sync::mpsc;

use crate::link::{Binary, Encoding, Link, MessageReader, MessageWriter, ReadError};

/// Messages in flight in one direction.
const DEPTH: usize = 64;

/// Makes a link and its other end.
pub fn pair() -> (Link, Link) {
    let (here, there) = (mpsc::channel(DEPTH), mpsc::channel(DEPTH));
    (end(here.0, there.1), end(there.0, here.1))
}

fn end(out: mpsc::Sender<Bytes>, from: mpsc::Receiver<Bytes>) -> Link {
    Link {
        reader: Box::new(Reader { from }),
        writer: Box::new(Writer {
            out: Some(Out::new(out)),
            queue: VecDeque::new(),
            queued: 0,
        }),
        peer: "memory".to_owned(),
        binary: Binary::Possible,
        most_unanswered: usize::MAX,
        slot: None,
        handshake_began: None,
        principal: None,
        path: None,
    }
}

#[derive(Debug)]
struct Reader {
    from: mpsc::Receiver<Bytes>,
}

impl MessageReader for Reader {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ReadError>> {
        self.from.poll_recv(cx).map(Ok)
    }
}

#[derive(Debug)]
struct Writer {
    out: Option<Out>,
    queue: VecDeque<Bytes>,
    queued: usize,
}

impl MessageWriter for Writer {
    fn push(&mut self, message: Outgoing, encoding: Encoding) {
        let mut text = Vec::with_capacity(message.text_len());
        match (message, encoding) {
            (Outgoing::Data(message), Encoding::Binary) => {
                let data = message.encode_binary(&mut text);
                text.extend_from_slice(&data);
            }
            (message, _) => message.encode_text(&mut text),
        }
        self.queued += text.len();
        self.queue.push_back(text.into());
    }

    fn buffered(&self) -> usize {
        self.queued
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        while let Some(message) = self.queue.front() {
            let out = self.out.as_mut().ok_or_else(gone)?;
            let length = message.len();
            ready!(out.poll_send(cx, message.clone())).map_err(|()| gone())?;
            self.queue.pop_front();
            self.queued -= length;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_upkeep(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(self.poll_flush(cx));
        self.out = None;
        Poll::Ready(flushed)
    }
}

type Reserve = std::pin::Pin<
    Box<dyn Future<Output = Result<mpsc::OwnedPermit<Bytes>, mpsc::error::SendError<()>>> + Send>,
>;

/// A sender that can be polled for room.
struct Out {
    sender: mpsc::Sender<Bytes>,
    reserve: Option<Reserve>,
}

impl std::fmt::Debug for Out {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Out")
            .field("sender", &self.sender)
            .finish_non_exhaustive()
    }
}

impl Out {
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
