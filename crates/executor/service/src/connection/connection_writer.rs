//! The writing half: takes answers from the queue and events from the logs, and flushes at once
//! when neither has more.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use exec_core::log::Exit;
use exec_env::process::{ExecProcessEvent, ExecProcessEvent as Event};
use exec_transport::link::{Encoding, MessageWriter};
use exec_wire::{
    command::CommandExited,
    id::{OutputSeq, ProcessId},
    method::notification,
    outgoing::Outgoing,
    process::{Exited, ProcessClosed},
};
use futures_util::{Stream, StreamExt, stream::SelectAll};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::{
    meters::Meters,
    send_queue::{FollowedProcess, SendItem},
};

/// What is gathered before it is flushed although more is ready. Larger gathers measured no better.
const BATCH_BYTES: usize = 64 << 10;

pub(super) struct ConnectionWriter {
    link: Box<dyn MessageWriter>,
    items: mpsc::UnboundedReceiver<SendItem>,
    follows: SelectAll<NotificationStream>,
    encoding: Encoding,
    /// Room that is given back when the messages are flushed.
    permits: Vec<OwnedSemaphorePermit>,
    meters: Arc<Meters>,
}

impl ConnectionWriter {
    pub(super) fn new(
        link: Box<dyn MessageWriter>,
        items: mpsc::UnboundedReceiver<SendItem>,
        meters: Arc<Meters>,
    ) -> Self {
        Self {
            link,
            items,
            follows: SelectAll::new(),
            encoding: Encoding::Text,
            permits: Vec::new(),
            meters,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            if !poll_fn(|cx| self.poll_batch(cx)).await {
                // Nobody sends any more; what is left goes out if the peer takes it.
                if let Err(error) = self.link.close().await {
                    tracing::debug!(%error, "link was not closed");
                }
                return;
            }
            if let Err(error) = self.flush().await {
                tracing::debug!(%error, "connection cannot be written to");
                return;
            }
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.meters.sent_bytes.add_bytes(self.link.buffered());
        self.link.flush().await?;
        self.permits.clear();
        Ok(())
    }

    /// Encodes what is ready. Resolves to `true` when there is something to flush, and to `false`
    /// when there never will be.
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
                    // The session is detached: its events are no longer for this peer.
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
        if self.link.buffered() > 0 || self.link.poll_upkeep(cx).is_ready() {
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
            SendItem::Binary => self.encoding = Encoding::Binary,
            SendItem::Follow(followed) => {
                let meters = Arc::clone(&self.meters);
                self.follows.push(NotificationStream { followed, meters });
            }
        }
    }
}

/// The events of one process, as messages.
struct NotificationStream {
    followed: FollowedProcess,
    meters: Arc<Meters>,
}

impl Stream for NotificationStream {
    type Item = Outgoing;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Outgoing>> {
        let Self { followed, meters } = &mut *self;
        let FollowedProcess {
            id, family, events, ..
        } = followed;
        loop {
            match ready!(events.poll_next_unpin(cx)) {
                None => return Poll::Ready(None),
                Some(event) => {
                    if let ExecProcessEvent::Output(chunk) = &event {
                        meters.output_bytes.add_bytes(chunk.data.len());
                    }
                    if let Some(message) = notification(id, *family, event) {
                        return Poll::Ready(Some(message));
                    }
                }
            }
        }
    }
}

/// How a process reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MethodFamily {
    /// `process/*`.
    Process,
    /// `command/exec*`, the first one.
    Command,
}

/// Returns the notification of an event, if the dialect has one.
pub(crate) fn notification(id: &ProcessId, family: MethodFamily, event: Event) -> Option<Outgoing> {
    match (family, event) {
        (MethodFamily::Process, Event::Output(chunk)) => {
            Some(Outgoing::output(id, chunk.seq, chunk.stream, chunk.data))
        }
        (MethodFamily::Process, Event::Exited(seq, exit)) => Some(exited(id, seq, exit)),
        (MethodFamily::Process, Event::Closed(seq)) => {
            let closed = ProcessClosed {
                process_id: id.clone(),
                seq,
            };
            Some(Outgoing::notification(
                notification::PROCESS_CLOSED,
                &closed,
            ))
        }
        (MethodFamily::Command, Event::Output(chunk)) => {
            Some(Outgoing::command_output(id, chunk.stream, chunk.data))
        }
        (MethodFamily::Command, Event::Exited(_, exit)) => {
            let exited = CommandExited {
                process_id: id.clone(),
                exit_code: exit.code,
            };
            Some(Outgoing::notification(
                notification::COMMAND_EXITED,
                &exited,
            ))
        }
        // A process that failed elsewhere has no number to tell it by; its next read says so.
        (MethodFamily::Command, Event::Closed(_)) | (_, Event::Failed(_)) => None,
    }
}

fn exited(id: &ProcessId, seq: OutputSeq, exit: Exit) -> Outgoing {
    let exited = Exited {
        process_id: id.clone(),
        seq,
        exit_code: exit.code,
        sandbox_denied: Some(exit.sandbox_denied),
        signal: exit.signal.map(str::to_owned),
        cause: Some(exit.cause),
        usage: exit.usage,
    };
    Outgoing::notification(notification::PROCESS_EXITED, &exited)
}
