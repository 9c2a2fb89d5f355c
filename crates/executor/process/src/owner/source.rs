//! One end of a pipe or terminal that a child writes.

use std::{
    cell::RefCell,
    future::poll_fn,
    io,
    os::fd::OwnedFd,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use exec_wire::{limits, process::OutputStream};
use rustix::{buffer::spare_capacity, io::read};
use tokio::io::unix::AsyncFd;

use crate::pipe;

/// Bytes asked for at once of a source that fills its buffer: all that an enlarged pipe holds.
const BULK_BYTES: usize = pipe::LARGE_BYTES;

thread_local! {
    /// Where output is read to: a buffer of each size for each thread. An idle process holds none.
    static BUFFERS: RefCell<[Vec<u8>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

#[derive(Debug)]
pub(crate) struct Source {
    fd: Arc<AsyncFd<OwnedFd>>,
    kind: Kind,
    /// It filled a buffer once: its pipe was enlarged, and is emptied at once.
    bulk: bool,
}

/// What a source is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// A pipe with this stream.
    Pipe(OutputStream),
    /// A terminal.
    Terminal,
}

impl Source {
    pub(crate) fn new(fd: Arc<AsyncFd<OwnedFd>>, kind: Kind) -> Self {
        Self {
            fd,
            kind,
            bulk: false,
        }
    }

    pub(super) fn stream(&self) -> OutputStream {
        match self.kind {
            Kind::Pipe(stream) => stream,
            Kind::Terminal => OutputStream::Pty,
        }
    }

    /// Reads what is there now. `None`: nothing. `Some(None)`: the end.
    pub(super) fn read_now(&mut self) -> Option<Option<Bytes>> {
        match self.read() {
            Ok(data) => Some(data),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(_) => Some(None),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let fd = Arc::clone(&self.fd);
            let Ok(mut ready) = ready!(fd.poll_read_ready(cx)) else {
                return Poll::Ready(None);
            };
            match ready.try_io(|_| self.read()) {
                Ok(Ok(data)) => {
                    // A pipe that gave less than was asked for is empty; a terminal hands out its
                    // input in pieces and may have more.
                    let short = data.as_ref().is_some_and(|data| data.len() < self.wanted());
                    if short && self.kind != Kind::Terminal {
                        ready.clear_ready();
                    }
                    return Poll::Ready(data);
                }
                // A terminal whose other end closed says so by an error.
                Ok(Err(_)) => return Poll::Ready(None),
                Err(_would_block) => {}
            }
        }
    }

    fn read(&mut self) -> io::Result<Option<Bytes>> {
        let wanted = self.wanted();
        let data = BUFFERS.with_borrow_mut(|buffers| {
            let buffer = &mut buffers[usize::from(self.bulk)];
            buffer.clear();
            buffer.reserve_exact(wanted);
            let count = read(self.fd.get_ref(), spare_capacity(buffer))?;
            // A read that fills half of its buffer keeps it; a smaller one is copied into memory of
            // its size, so that what is retained is not much more than what was written.
            Ok::<_, io::Error>(if count == 0 {
                None
            } else if count >= wanted / 2 {
                Some(Bytes::from(std::mem::take(buffer)))
            } else {
                Some(Bytes::copy_from_slice(buffer))
            })
        })?;
        let full = data.as_ref().is_some_and(|data| data.len() == wanted);
        if full && !self.bulk && self.kind != Kind::Terminal {
            self.bulk = true;
            pipe::enlarge(self.fd.get_ref());
        }
        Ok(data)
    }

    fn wanted(&self) -> usize {
        if self.bulk {
            BULK_BYTES
        } else {
            limits::OUTPUT_CHUNK_BYTES
        }
    }
}

/// Reads from whichever source has something; `None` is its end. Cancelling loses nothing.
pub(super) async fn read_any(sources: &mut [Source]) -> (usize, Option<Bytes>) {
    poll_fn(|cx| {
        for (index, source) in sources.iter_mut().enumerate() {
            if let Poll::Ready(data) = source.poll_read(cx) {
                return Poll::Ready((index, data));
            }
        }
        Poll::Pending
    })
    .await
}
