//! One connection: a [`RequestDispatcher`] reads and runs requests, and a [`ConnectionWriter`] in
//! its own task sends responses and events.

mod connection_writer;
mod request_dispatcher;

use std::{sync::Arc, time::Duration};

use exec_transport::link::Link;
use tokio::time::timeout;
use tracing::{Instrument, field::Empty};

pub(crate) use self::connection_writer::MethodFamily;
use self::{
    connection_writer::ConnectionWriter,
    request_dispatcher::{ReadOutcome, RequestDispatcher},
};
use crate::{metrics::ConnectionGuard, send_queue::SendQueue, service::ServiceShared};

/// Serves a connection until the peer closes it or it fails.
pub(crate) async fn serve(shared: Arc<ServiceShared>, link: Link) {
    let _open = ConnectionGuard::connection(&shared.metrics);
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
        outcome = dispatcher.run(&mut *input) => outcome,
        // The writer failed: the peer is unreachable.
        () = send_queue.closed() => ReadOutcome::Done,
    };
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

/// Time limit for flushing and closing after the last request was read.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
