//! Two sockets, joined: text messages go through as they are.

use std::{future::poll_fn, io, task::Poll, time::Duration};

use exec_transport::link::{Encoding, Link, MessageReader, MessageWriter};
use exec_wire::outgoing::Outgoing;
use tokio::time::timeout;

/// How long a socket may take nothing of what is written to it.
const STALL: Duration = Duration::from_secs(60);
/// How long a socket may take to say goodbye.
const CLOSING: Duration = Duration::from_secs(2);

/// Carries messages both ways until one side is done, breaks, or sends what is no text.
///
/// A message is held whole, so a pair costs as much memory as the largest message each way. A side
/// that takes nothing stops the other from sending.
pub(super) async fn join(one: &mut Link, two: &mut Link) {
    tokio::select! {
        () = carry(&mut *one.reader, &mut *two.writer) => {}
        () = carry(&mut *two.reader, &mut *one.writer) => {}
    }
}

async fn carry(from: &mut dyn MessageReader, to: &mut dyn MessageWriter) {
    loop {
        let turn = poll_fn(|cx| {
            if let Poll::Ready(message) = from.poll_message(cx) {
                return Poll::Ready(Some(message));
            }
            to.poll_upkeep(cx).map(|()| None)
        });
        match turn.await {
            None => {}
            Some(Ok(Some(message))) if str::from_utf8(&message).is_ok() => {
                to.push(Outgoing::Text(message.into()), Encoding::Text);
            }
            // Binary messages are an agreement of two ends that see each other's sockets.
            Some(Ok(Some(_)) | Ok(None) | Err(_)) => return,
        }
        if flush(to).await.is_err() {
            return;
        }
    }
}

/// Flushes for as long as the socket takes something.
pub(super) async fn flush(writer: &mut dyn MessageWriter) -> io::Result<()> {
    loop {
        let before = writer.buffered();
        match timeout(STALL, writer.flush()).await {
            Ok(flushed) => return flushed,
            Err(_) if writer.buffered() < before => {}
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Says goodbye, within limits.
pub(super) async fn close(writer: &mut dyn MessageWriter) {
    // Gone or not: nobody waits for it any more.
    drop(timeout(CLOSING, writer.close()).await);
}
