//! A stream as a link.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use exec_relay::{limits::MESSAGE_BYTES, stream::Delivery};
use exec_wire::{error::RpcError, outgoing::Outgoing};
use tokio::task::coop;

use super::{End, stream_shared::Cell};
use crate::link::{Binary, Encoding, Link, MessageReader, MessageWriter, ReadError};

/// Makes the link of a stream.
pub(super) fn link(cell: Arc<Cell>, peer: String) -> Link {
    let most_unanswered = match cell.delivery() {
        Delivery::Plain => PLAIN_UNANSWERED,
        Delivery::Reliable => usize::MAX,
    };
    Link {
        reader: Box::new(Reader(Arc::clone(&cell))),
        writer: Box::new(Writer { cell, pushed: 0 }),
        peer,
        binary: Binary::Possible,
        most_unanswered,
        slot: None,
        handshake_began: None,
        principal: None,
        path: None,
    }
}

/// Requests that are sent to a stock executor before one is answered. It handles one at a time, and ends
/// a stream on which more than 128 messages wait; what nobody waits for, such as closing files, comes on top.
const PLAIN_UNANSWERED: usize = 16;

#[derive(Debug)]
struct Reader(Arc<Cell>);

impl MessageReader for Reader {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ReadError>> {
        // No socket is read here: whoever reads on and on lets others have their turn all the same.
        let turn = ready!(coop::poll_proceed(cx));
        let message = ready!(self.0.poll_message(cx));
        turn.made_progress();
        Poll::Ready(match message {
            Ok(message) => Ok(Some(message)),
            Err(end) => end.read_error().map(|()| None),
        })
    }
}

#[derive(Debug)]
struct Writer {
    cell: Arc<Cell>,
    /// What was pushed since the last flush.
    pushed: usize,
}

impl MessageWriter for Writer {
    fn push(&mut self, message: Outgoing, encoding: Encoding) {
        let message = fitting(message, encoding);
        self.pushed += self.cell.push(|out| match (message, encoding) {
            (Outgoing::Data(message), Encoding::Binary) => {
                let data = message.encode_binary(out);
                out.extend_from_slice(&data);
            }
            (message, _) => message.encode_text(out),
        });
    }

    fn buffered(&self) -> usize {
        self.pushed
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(self.cell.poll_flush(cx));
        self.pushed = 0;
        Poll::Ready(flushed.map_err(|end: End| end.io_error()))
    }

    fn poll_upkeep(&mut self, _: &mut Context<'_>) -> Poll<()> {
        // The driver sees to it, whether or not anybody polls the link.
        Poll::Pending
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = ready!(self.cell.poll_close(cx));
        Poll::Ready(closed.map_err(|end| end.io_error()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.cell.leave();
    }
}

/// Returns a message that a stream carries. An answer that is too long becomes an error; another message
/// that is too long ends the stream, as it would at the peer.
fn fitting(message: Outgoing, encoding: Encoding) -> Outgoing {
    let length = match (&message, encoding) {
        (Outgoing::Data(message), Encoding::Binary) => {
            message.binary_head_len() + message.data_len()
        }
        (message, _) => message.text_len(),
    };
    if length <= MESSAGE_BYTES {
        return message;
    }
    let text = format!("answer of {length} bytes exceeds the relay's limit of {MESSAGE_BYTES}");
    message
        .refused(&RpcError::invalid_request(text))
        .unwrap_or(message)
}
