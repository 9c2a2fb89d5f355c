//! One connection: a [`RequestDispatcher`] reads and runs requests, and a [`ConnectionWriter`] in
//! its own task sends responses and events.
//!
//! The writer takes messages from the send queue, pulls process events from the output logs and data
//! from the tunnels, one message of each in turn, and flushes as soon as none has more.

mod decoded_request;
mod request_dispatcher;

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use exec_core::output_log::ExitInfo;
use exec_env::process::ExecProcessEvent;
use exec_transport::{
    link::{DataEncoding, Link, MessageWriter},
    session_tunnels::TunnelSender,
};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    method::notification,
    outgoing_message::OutgoingMessage,
    process::{CommandExited, ProcessClosed, ProcessExited},
};
use futures_util::{Stream, StreamExt, stream::SelectAll};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    time::{sleep, timeout},
};
use tracing::{Instrument, field::Empty};

use self::request_dispatcher::{ReadOutcome, RequestDispatcher};
use crate::{
    metrics::ServiceMetrics,
    send_queue::{FollowedProcess, SendItem, SendQueue},
    service::ServiceShared,
};

/// Serves a connection until the peer closes it or it fails.
pub(crate) async fn serve(shared: Arc<ServiceShared>, link: Link) {
    let _counted = CountedConnection::new(&shared);
    let span = tracing::info_span!(
        target: "exec_service::connection", "connection",
        peer = link.peer, client = Empty, session = Empty,
    );
    async {
        tracing::info!(target: "exec_service::connection", "connection opened");
        run(shared, link).await;
        tracing::info!(target: "exec_service::connection", "connection closed");
    }
    .instrument(span)
    .await;
}

async fn run(shared: Arc<ServiceShared>, link: Link) {
    let (send_queue, items) = SendQueue::new();
    let (send_queue, metrics) = (Arc::new(send_queue), Arc::clone(&shared.metrics));
    let writer = tokio::spawn(ConnectionWriter::new(link.writer, items, metrics).run());
    let mut dispatcher = RequestDispatcher::new(
        Arc::clone(&shared),
        Arc::clone(&send_queue),
        &link.peer,
        link.binary,
        link.principal,
    );
    let (mut input, _slot) = (link.reader, link.slot);
    let outcome = tokio::select! {
        outcome = dispatcher.run(&mut *input, closing(&shared)) => outcome,
        // The writer failed: the peer is unreachable.
        () = send_queue.closed() => ReadOutcome::Done,
        // The client has not opened a session in time, or a response waits for it.
        () = finish_timeout(&shared) => ReadOutcome::Done,
    };
    if outcome == ReadOutcome::Stopped {
        tokio::select! {
            () = dispatcher.drain() => {}
            () = send_queue.closed() => {}
            () = finish_timeout(&shared) => {}
        }
    }
    send_queue.server_requests().close();
    // Dropping the dispatcher cancels requests that still run. Their effects so far remain.
    let session = dispatcher.into_session();
    drop(send_queue);
    if let Some(session) = session {
        shared.sessions.detach(session);
    }
    // Flush responses that are already queued, if the peer still reads.
    let stop = writer.abort_handle();
    let closed = async {
        drop(writer.await);
        if outcome == ReadOutcome::Failed {
            // Discard unread input: the kernel would otherwise reset the connection, and the peer
            // might not see the close reason.
            while let Ok(Some(_)) = input.next().await {}
        }
    };
    if timeout(CLOSE_TIMEOUT, closed).await.is_err() {
        stop.abort();
    }
}

/// Waits until every connection shall end.
async fn closing(shared: &ServiceShared) {
    // The sender lives as long as `shared`, so waiting cannot fail.
    drop(
        shared
            .closing
            .subscribe()
            .wait_for(|closing| *closing)
            .await,
    );
}

/// Waits until a connection shall have ended.
async fn finish_timeout(shared: &ServiceShared) {
    closing(shared).await;
    sleep(FINISH_TIMEOUT).await;
}

/// Counts a connection while it lives.
struct CountedConnection(Arc<ServiceShared>);

impl CountedConnection {
    fn new(shared: &Arc<ServiceShared>) -> Self {
        shared.metrics.connections_opened.increment();
        shared.metrics.connections.enter();
        shared.connections.send_modify(|open| *open += 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.connections.send_modify(|open| *open -= 1);
        self.0.metrics.connections.leave();
    }
}

/// Time limit for opening a session, and then for requests that have begun, when another server
/// takes over.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Time limit for flushing and closing after the last request was read.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes encoded before a flush although more is ready. Larger batches measured no better.
const BATCH_BYTES: usize = 64 << 10;

struct ConnectionWriter {
    link: Box<dyn MessageWriter>,
    items: mpsc::UnboundedReceiver<SendItem>,
    follows: SelectAll<NotificationStream>,
    tunnels: Option<TunnelSender>,
    encoding: DataEncoding,
    /// Permits of the send queue, released after the flush.
    permits: Vec<OwnedSemaphorePermit>,
    /// Dropped when nothing is ready and everything is flushed.
    flush_notifiers: Vec<oneshot::Sender<()>>,
    metrics: Arc<ServiceMetrics>,
}

impl ConnectionWriter {
    fn new(
        link: Box<dyn MessageWriter>,
        items: mpsc::UnboundedReceiver<SendItem>,
        metrics: Arc<ServiceMetrics>,
    ) -> Self {
        Self {
            link,
            items,
            follows: SelectAll::new(),
            tunnels: None,
            encoding: DataEncoding::Text,
            permits: Vec::new(),
            flush_notifiers: Vec::new(),
            metrics,
        }
    }

    async fn run(mut self) {
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
                    self.tunnels = None;
                }
                Poll::Pending => {}
            }
            if let Poll::Ready(Some(message)) = self.follows.poll_next_unpin(cx) {
                self.link.push(message, self.encoding);
                progress = true;
            }
            if let Some(tunnels) = &mut self.tunnels
                && let Poll::Ready(message) = tunnels.poll_message(cx)
            {
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
        self.flush_notifiers.clear();
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
            SendItem::Tunnels(tunnels) => self.tunnels = Some(tunnels),
            SendItem::Binary => self.encoding = DataEncoding::Binary,
            SendItem::NotifyFlushed(notifier) => self.flush_notifiers.push(notifier),
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
    event: ExecProcessEvent,
) -> Option<OutgoingMessage> {
    match (family, event) {
        (MethodFamily::Process, ExecProcessEvent::Output(chunk)) => Some(OutgoingMessage::output(
            id,
            chunk.seq,
            chunk.stream,
            chunk.data,
        )),
        (MethodFamily::Process, ExecProcessEvent::Exited(seq, exit)) => Some(exited(id, seq, exit)),
        (MethodFamily::Process, ExecProcessEvent::Closed(seq)) => {
            let process_id = id.clone();
            let closed = ProcessClosed { process_id, seq };
            let method = notification::PROCESS_CLOSED;
            Some(OutgoingMessage::notification(method, &closed))
        }
        (MethodFamily::Command, ExecProcessEvent::Output(chunk)) => Some(
            OutgoingMessage::command_output(id, chunk.stream, chunk.data),
        ),
        (MethodFamily::Command, ExecProcessEvent::Exited(_, exit)) => {
            let exited = CommandExited {
                process_id: id.clone(),
                exit_code: exit.code,
            };
            let method = notification::COMMAND_EXITED;
            Some(OutgoingMessage::notification(method, &exited))
        }
        // A failed process has no sequence number; its next read returns the failure.
        (MethodFamily::Command, ExecProcessEvent::Closed(_)) | (_, ExecProcessEvent::Failed(_)) => {
            None
        }
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
