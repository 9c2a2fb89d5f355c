//! Moves messages from one link to another, with backpressure.

use std::{
    future::{Future as _, poll_fn},
    io,
    pin::pin,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use exec_wire::{limits, outgoing_message::OutgoingMessage};
use tokio::time::{Instant, sleep};

use crate::link::{DataEncoding, LinkReadError, MessageReader, MessageWriter};

/// While this many bytes wait for the writer, the reader is not read.
const HIGH_WATER: usize = limits::SEND_BUFFER_BYTES;

/// Moves messages from a reader to a writer, unchanged, until one of them ends. Messages that
/// cannot be flushed at once by then stay in the writer.
///
/// `filter` says whether to forward a message or, with an error, to end. With a `write_timeout` the
/// writer fails when it takes no byte for so long.
pub async fn pump_messages<E>(
    reader: &mut dyn MessageReader,
    writer: &mut dyn MessageWriter,
    write_timeout: Option<Duration>,
    mut filter: impl FnMut(&Bytes) -> Result<bool, E>,
) -> PumpEnd<E> {
    let mut stalled = pin!(sleep(Duration::ZERO));
    let mut is_blocked = false;
    poll_fn(|cx| {
        loop {
            let (mut is_drained, mut end) = (false, None);
            while !is_drained && end.is_none() && writer.buffered() < HIGH_WATER {
                match reader.poll_message(cx) {
                    Poll::Ready(Ok(Some(message))) => match filter(&message) {
                        Ok(true) => {
                            let message = OutgoingMessage::Text(message.into());
                            writer.push(message, DataEncoding::Text);
                        }
                        Ok(false) => {}
                        Err(error) => end = Some(PumpEnd::Refused(error)),
                    },
                    Poll::Ready(Ok(None)) => end = Some(PumpEnd::Closed),
                    Poll::Ready(Err(error)) => end = Some(PumpEnd::Read(error)),
                    Poll::Pending => is_drained = true,
                }
            }
            let before = writer.buffered();
            let flushed = writer.poll_flush(cx);
            if let Some(end) = end {
                return Poll::Ready(end);
            }
            match flushed {
                Poll::Ready(Ok(())) => is_blocked = false,
                Poll::Ready(Err(error)) => return Poll::Ready(PumpEnd::Write(error)),
                Poll::Pending => {
                    let Some(limit) = write_timeout else {
                        return Poll::Pending;
                    };
                    if !is_blocked || writer.buffered() < before {
                        is_blocked = true;
                        stalled.as_mut().reset(Instant::now() + limit);
                    }
                    let timed_out = || PumpEnd::Write(io::ErrorKind::TimedOut.into());
                    return stalled.as_mut().poll(cx).map(|()| timed_out());
                }
            }
            // The reader wakes us, or the writer when it has a control frame to flush.
            if is_drained && writer.poll_keepalive(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await
}

/// Why a pump ended.
#[derive(Debug)]
pub enum PumpEnd<E> {
    /// The peer of the reader closed.
    Closed,
    /// Reading failed.
    Read(LinkReadError),
    /// Writing failed.
    Write(io::Error),
    /// The filter refused a message.
    Refused(E),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;

    fn all(_: &Bytes) -> Result<bool, ()> {
        Ok(true)
    }

    #[tokio::test(start_paused = true)]
    async fn writer_without_progress_fails_after_the_timeout() {
        let ((mut near, mut source), (mut far, sink)) = (memory::pair(), memory::pair());
        let flood = async {
            loop {
                let message = OutgoingMessage::Text(vec![b'x'; 256 << 10]);
                source.writer.push(message, DataEncoding::Text);
                source.writer.flush().await.unwrap();
            }
        };
        let limit = Duration::from_secs(60);
        let started = Instant::now();
        let end = tokio::select! {
            end = pump_messages(&mut *near.reader, &mut *far.writer, Some(limit), all) => end,
            () = flood => unreachable!("the flood does not end"),
        };
        let timed_out =
            matches!(&end, PumpEnd::Write(error) if error.kind() == io::ErrorKind::TimedOut);
        assert!(timed_out, "{end:?}");
        assert_eq!(started.elapsed(), limit);
        drop(sink);
    }

    #[tokio::test]
    async fn filter_drops_and_refuses_messages() {
        let ((mut near, mut source), (mut far, mut sink)) = (memory::pair(), memory::pair());
        for message in ["drop", "pass", "refuse"] {
            let message = OutgoingMessage::Text(message.as_bytes().to_vec());
            source.writer.push(message, DataEncoding::Text);
        }
        source.writer.flush().await.unwrap();
        let filter = |message: &Bytes| match &message[..] {
            b"refuse" => Err("refused"),
            message => Ok(message == b"pass"),
        };
        let end = pump_messages(&mut *near.reader, &mut *far.writer, None, filter).await;
        assert!(matches!(end, PumpEnd::Refused("refused")), "{end:?}");
        far.writer.flush().await.unwrap();
        assert_eq!(sink.reader.next().await.unwrap().unwrap(), "pass");
    }
}
