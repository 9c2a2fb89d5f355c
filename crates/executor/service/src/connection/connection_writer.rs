//! The connection's writer: takes messages from the send queue, pulls process events from the
//! output logs, encodes them and flushes as soon as neither has more.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use exec_core::output_log::ExitInfo;
use exec_env::process::{ExecProcessEvent, ExecProcessEvent as Event};
use exec_transport::link::{DataEncoding, MessageWriter};
use exec_wire::{
    command::CommandExited,
    id::{OutputSeq, ProcessId},
    method::notification,
    outgoing_message::OutgoingMessage,
    process::{ProcessClosed, ProcessExited},
};
use futures_util::{Stream, StreamExt, stream::SelectAll};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::{
    metrics::ServiceMetrics,
    send_queue::{FollowedProcess, SendItem},
};

/// Bytes encoded before a flush although more is ready. Larger batches measured no better.
const BATCH_BYTES: usize = 64 << 10;

pub(super) struct ConnectionWriter {
    link: Box<dyn MessageWriter>,
    items: mpsc::UnboundedReceiver<SendItem>,
    follows: SelectAll<NotificationStream>,
    encoding: DataEncoding,
    /// Permits of the send queue, released after the flush.
    permits: Vec<OwnedSemaphorePermit>,
    metrics: Arc<ServiceMetrics>,
}

impl ConnectionWriter {
    pub(super) fn new(
        link: Box<dyn MessageWriter>,
        items: mpsc::UnboundedReceiver<SendItem>,
        metrics: Arc<ServiceMetrics>,
    ) -> Self {
        Self {
            link,
            items,
            follows: SelectAll::new(),
            encoding: DataEncoding::Text,
            permits: Vec::new(),
            metrics,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            if !poll_fn(|cx| self.poll_batch(cx)).await {
                // Every sender is gone. Closing flushes the rest if the peer reads it.
                if let Err(error) = self.link.close().await {
                    tracing::debug!(%error, "failed to close the link");
                }
                return;
            }
            if let Err(error) = self.flush().await {
                tracing::debug!(%error, "failed to write to the connection");
                return;
            }
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.metrics.sent_bytes.add_bytes(self.link.buffered());
        self.link.flush().await?;
        self.permits.clear();
        Ok(())
    }

    /// Encodes ready messages. Resolves to `true` if there is something to flush, to `false` if
    /// every sender is gone.
    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut open = true;
        while self.link.buffered() < BATCH_BYTES {
            let mut progress = false;
            match self.items.poll_recv(cx) {
                Poll::Ready(Some(item)) => {
                    self.handle_item(item);
                    progress = true;
                }
                Poll::Ready(None) => {
                    // The session is detached: do not send its events to this peer.
                    open = false;
                    self.follows.clear();
                }
                Poll::Pending => {}
            }
            if let Poll::Ready(Some(message)) = self.follows.poll_next_unpin(cx) {
                self.link.push(message, self.encoding);
                progress = true;
            }
            if !progress {
                break;
            }
        }
        if self.link.buffered() > 0 || self.link.poll_keepalive(cx).is_ready() {
            return Poll::Ready(true);
        }
        if open {
            Poll::Pending
        } else {
            Poll::Ready(false)
        }
    }

    fn handle_item(&mut self, item: SendItem) {
        match item {
            SendItem::Message(message, permits) => {
                self.link.push(message, self.encoding);
                self.permits.extend(permits);
            }
            SendItem::Binary => self.encoding = DataEncoding::Binary,
            SendItem::Follow(followed) => {
                let metrics = Arc::clone(&self.metrics);
                self.follows.push(NotificationStream { followed, metrics });
            }
        }
    }
}

/// Stream of one process's events, encoded as notifications.
struct NotificationStream {
    followed: FollowedProcess,
    metrics: Arc<ServiceMetrics>,
}

impl Stream for NotificationStream {
    type Item = OutgoingMessage;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<OutgoingMessage>> {
        let Self { followed, metrics } = &mut *self;
        let FollowedProcess {
            id, family, events, ..
        } = followed;
        loop {
            match ready!(events.poll_next_unpin(cx)) {
                None => return Poll::Ready(None),
                Some(event) => {
                    if let ExecProcessEvent::Output(chunk) = &event {
                        metrics.output_bytes.add_bytes(chunk.data.len());
                    }
                    if let Some(message) = notification(id, *family, event) {
                        return Poll::Ready(Some(message));
                    }
                }
            }
        }
    }
}

/// Method family that started a process. It decides which notifications are sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MethodFamily {
    /// `process/*`.
    Process,
    /// `command/exec*`, the older family.
    Command,
}

/// Encodes an event as a notification, if the method family has one for it.
pub(crate) fn notification(
    id: &ProcessId,
    family: MethodFamily,
    event: Event,
) -> Option<OutgoingMessage> {
    match (family, event) {
        (MethodFamily::Process, Event::Output(chunk)) => Some(OutgoingMessage::output(
            id,
            chunk.seq,
            chunk.stream,
            chunk.data,
        )),
        (MethodFamily::Process, Event::Exited(seq, exit)) => Some(exited(id, seq, exit)),
        (MethodFamily::Process, Event::Closed(seq)) => {
            let closed = ProcessClosed {
                process_id: id.clone(),
                seq,
            };
            Some(OutgoingMessage::notification(
                notification::PROCESS_CLOSED,
                &closed,
            ))
        }
        (MethodFamily::Command, Event::Output(chunk)) => Some(OutgoingMessage::command_output(
            id,
            chunk.stream,
            chunk.data,
        )),
        (MethodFamily::Command, Event::Exited(_, exit)) => {
            let exited = CommandExited {
                process_id: id.clone(),
                exit_code: exit.code,
            };
            Some(OutgoingMessage::notification(
                notification::COMMAND_EXITED,
                &exited,
            ))
        }
        // A failed process has no sequence number; its next read returns the failure.
        (MethodFamily::Command, Event::Closed(_)) | (_, Event::Failed(_)) => None,
    }
}

fn exited(id: &ProcessId, seq: OutputSeq, exit: ExitInfo) -> OutgoingMessage {
    let exited = ProcessExited {
        process_id: id.clone(),
        seq,
        exit_code: exit.code,
        sandbox_denied: Some(exit.sandbox_denied),
        signal: exit.signal.map(str::to_owned),
        cause: Some(exit.cause),
        usage: exit.usage,
    };
    OutgoingMessage::notification(notification::PROCESS_EXITED, &exited)
}
