//! Adapts a relay stream to a link.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use exec_relay::{limits::MESSAGE_BYTES, stream::DeliveryMode};
use exec_wire::{error::RpcError, outgoing_message::OutgoingMessage};
use tokio::task::coop;

use super::{StreamCloseReason, stream_shared::StreamShared};
use crate::link::{BinarySupport, DataEncoding, Link, LinkReadError, MessageReader, MessageWriter};

/// Makes the link of a stream.
pub(super) fn link(shared: Arc<StreamShared>, peer: String) -> Link {
    let most_unanswered = match shared.delivery() {
        DeliveryMode::Plain => PLAIN_MAX_IN_FLIGHT,
        DeliveryMode::Reliable => usize::MAX,
    };
    Link {
        reader: Box::new(StreamReader(Arc::clone(&shared))),
        writer: Box::new(StreamWriter {
            shared,
            unflushed: 0,
        }),
        peer,
        binary: BinarySupport::Supported,
        max_in_flight: most_unanswered,
        slot: None,
        handshake_started_at: None,
        principal: None,
        path: None,
    }
}

/// Maximum number of requests in flight to a stock executor. It handles one at a time and ends a
/// stream with more than 128 queued messages; notifications come on top.
const PLAIN_MAX_IN_FLIGHT: usize = 16;

#[derive(Debug)]
struct StreamReader(Arc<StreamShared>);

impl MessageReader for StreamReader {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, LinkReadError>> {
        // This reads no socket, so it must use tokio's cooperative budget explicitly.
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
struct StreamWriter {
    shared: Arc<StreamShared>,
    /// Bytes pushed since the last flush.
    unflushed: usize,
}

impl MessageWriter for StreamWriter {
    fn push(&mut self, message: OutgoingMessage, encoding: DataEncoding) {
        let message = fit_to_limit(message, encoding);
        self.unflushed += self.shared.push(|out| match (message, encoding) {
            (OutgoingMessage::Data(message), DataEncoding::Binary) => {
                let data = message.encode_binary(out);
                out.extend_from_slice(&data);
            }
            (message, _) => message.encode_text(out),
        });
    }

    fn buffered(&self) -> usize {
        self.unflushed
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(self.shared.poll_flush(cx));
        self.unflushed = 0;
        Poll::Ready(flushed.map_err(|end: StreamCloseReason| end.io_error()))
    }

    fn poll_keepalive(&mut self, _: &mut Context<'_>) -> Poll<()> {
        // The driver runs the keepalive, whether or not the link is polled.
        Poll::Pending
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = ready!(self.shared.poll_close(cx));
        Poll::Ready(closed.map_err(|end| end.io_error()))
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.shared.detach();
    }
}

/// Replaces a response that exceeds the message limit by an error. Any other oversized message ends
/// the stream, as it would at the peer.
fn fit_to_limit(message: OutgoingMessage, encoding: DataEncoding) -> OutgoingMessage {
    let length = match (&message, encoding) {
        (OutgoingMessage::Data(message), DataEncoding::Binary) => {
            message.binary_head_len() + message.data_len()
        }
        (message, _) => message.text_len(),
    };
    if length <= MESSAGE_BYTES {
        return message;
    }
    let text = format!("answer of {length} bytes exceeds the relay's limit of {MESSAGE_BYTES}");
    message
        .error_response(&RpcError::invalid_request(text))
        .unwrap_or(message)
}
