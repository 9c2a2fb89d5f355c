//! Websocket framing, ours: a message is encoded straight into its frame, large ones are fragmented
//! on the way out, and limits hold before memory is taken on the way in.

mod frame;
mod large;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite};

pub use self::frame::accept_key;
use self::{reader::Reader, writer::Writer};
use crate::link::{Binary, Link, Role};

/// Makes a link of an upgraded connection. `already_read` came with the handshake.
pub fn link<R, W>(input: R, output: W, already_read: &[u8], role: Role, peer: String) -> Link
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let control = Arc::new(Control::default());
    Link {
        reader: Box::new(Reader::new(
            Box::new(input),
            BytesMut::from(already_read),
            role,
            Arc::clone(&control),
        )),
        writer: Box::new(Writer::new(Box::new(output), role, control)),
        peer,
        binary: Binary::Possible,
        slot: None,
    }
}

/// Control frames that the reader owes the peer, sent by the writer.
#[derive(Debug, Default)]
struct Control {
    owed: Mutex<Owed>,
    waker: AtomicWaker,
}

/// At most one of each: only the newest ping needs an answer.
#[derive(Debug, Default)]
struct Owed {
    pong: Option<Bytes>,
    close: bool,
}

impl Control {
    fn owe(&self, change: impl FnOnce(&mut Owed)) {
        change(&mut self.owed.lock().unwrap_or_else(PoisonError::into_inner));
        self.waker.wake();
    }

    fn take(&self) -> Owed {
        std::mem::take(&mut *self.owed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
