//! One connection: a reader that decodes, orders and runs requests, and a writer beside it.

mod connection_writer;
mod request_dispatcher;

use std::{sync::Arc, time::Duration};

use exec_transport::link::Link;
use tokio::time::timeout;
use tracing::{Instrument, field::Empty};

pub(crate) use self::connection_writer::Dialect;
use self::{
    connection_writer::Writer,
    request_dispatcher::{ReadEnd, Reader},
};
use crate::{meters::Held, send_queue::Outbox, service::Shared};

/// Serves a connection until its peer is done or it breaks.
pub(crate) async fn serve(shared: Arc<Shared>, link: Link) {
    let _open = Held::connection(&shared.meters);
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

async fn run(shared: Arc<Shared>, link: Link) {
    let (outbox, items) = Outbox::new();
    let (outbox, meters) = (Arc::new(outbox), Arc::clone(&shared.meters));
    let writer = tokio::spawn(Writer::new(link.writer, items, meters).run());
    let mut reader = Reader::new(
        Arc::clone(&shared),
        Arc::clone(&outbox),
        &link.peer,
        link.binary,
        link.principal,
    );
    let (mut input, _slot) = (link.reader, link.slot);
    let ended = tokio::select! {
        ended = reader.run(&mut *input) => ended,
        // The peer cannot be written to any more.
        () = outbox.closed() => ReadEnd::Done,
    };
    outbox.asked().hang_up();
    // Requests that still run are cancelled; what they have done stays.
    let session = reader.into_session();
    drop(outbox);
    if let Some(session) = session {
        shared.sessions.detach(session);
    }
    // What was answered already goes out, if the peer still takes it.
    let stop = writer.abort_handle();
    let closed = async {
        drop(writer.await);
        if ended == ReadEnd::Failed {
            // Discards what the peer sent meanwhile: unread data would make the system reset the
            // connection, and the peer might not see why it was closed.
            while let Ok(Some(_)) = input.next().await {}
        }
    };
    if timeout(LAST_WORDS, closed).await.is_err() {
        stop.abort();
    }
}

/// How long a peer that has said its last may take to read ours.
const LAST_WORDS: Duration = Duration::from_secs(1);
