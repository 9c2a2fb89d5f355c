//! `exec-server logs`.

mod kept;
mod tail;

use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use exec_client::client::ExecServerClient;
use exec_wire::{
    id::ProcessId,
    process::{OutputStream, ReadProcess},
};

use self::{kept::Kept, tail::last_lines};
use super::{
    detached::{self, call_failed},
    failure::{Failure, FailureKind},
    place::{Place, Where},
    stream::{End, Owner, Signals, Sink, Talk, Terminal, complain, telling, unwritten},
};

/// Prints what a detached process wrote.
///
/// A server keeps the last part of it: a mebibyte, if nobody set it otherwise. Ctrl-C ends following;
/// the process goes on.
#[derive(Args, Clone, Debug)]
pub struct Logs {
    #[command(flatten)]
    #[doc(hidden)]
    pub place: Where,

    /// Goes on until the process ends.
    #[arg(short, long)]
    pub follow: bool,

    /// Prints only the last lines of what is kept.
    #[arg(short = 'n', long, value_name = "LINES")]
    pub tail: Option<usize>,

    /// The id that `run --detach` printed, or a beginning of it.
    pub id: String,
}

/// What is asked for at once.
const PAGE_BYTES: usize = 1 << 20;

/// A piece of output.
type Piece = (OutputStream, Bytes);

impl Logs {
    /// Prints what a detached process wrote.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::open(&self.place).await?;
        let client = &place.client;
        let found = telling(client, detached::find_one(client, &self.id)).await?;
        let id = found.process_id;
        let kept = telling(client, kept(client, &id)).await?;
        if kept.incomplete && self.tail.is_none() {
            complain("earlier output is not kept any more");
        }
        let pieces = match self.tail {
            Some(lines) => last_lines(kept.pieces, lines),
            None => kept.pieces,
        };
        for (stream, data) in pieces {
            if let Err(error) = Sink.write(stream, data).await {
                return unwritten(&error);
            }
        }
        if kept.gap {
            complain("some output was written too fast to be kept, and is missing here");
        }
        if !self.follow || kept.closed {
            return Ok(ExitCode::SUCCESS);
        }
        let attached = telling(client, client.attach(id.clone(), Some(kept.last))).await;
        let failed = |error| Failure::new(FailureKind::Failed, error);
        let talk = Talk {
            client: client.clone(),
            process: attached.map_err(call_failed)?,
            signals: Signals::listen().map_err(failed)?,
            after: kept.last,
            owner: Owner::Server,
            input: None,
            terminal: Terminal::None,
            keys: None,
            picture: Vec::new(),
            limit: None,
        };
        let end = talk.run().await.map_err(failed)?;
        // What it ended with is for `wait` to tell.
        if matches!(end, End::Exited(_) | End::Closed) {
            return Ok(ExitCode::SUCCESS);
        }
        end.status(Owner::Server, &id, &place)
    }
}

/// Reads the output of a process that is kept.
pub(super) async fn kept(client: &ExecServerClient, id: &ProcessId) -> Result<Kept, Failure> {
    // What is written from now on is not waited for: there may always be more.
    let now = detached::now(client, id).await?;
    let ask = async |after| {
        let page = client.call(ReadProcess {
            process_id: id.clone(),
            after_seq: Some(after),
            max_bytes: Some(PAGE_BYTES),
            wait_ms: None,
        });
        page.await.map_err(call_failed)
    };
    Kept::read(now.next_seq, ask).await
}
