//! One connection: its state, the loop that reads and writes, and the state that outlives it.

use std::{collections::BTreeSet, fmt, future::poll_fn, io, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_core::peer::Calls;
use exec_env::disconnect::Disconnect;
use exec_transport::link::{Encoding, Link, MessageWriter, Path, ReadError};
use exec_wire::{
    id::{ProcessId, SessionId},
    initialize::Extension,
    method::MethodName,
};
use futures_util::FutureExt;
use tokio::{
    sync::watch,
    task::yield_now,
    time::{Instant, sleep, timeout},
};

use super::{
    backpressure::{Room, SLOW_MESSAGES, SLOW_PERIOD, Windows},
    call::{Ask, ConnectionNumber, Pending, Queue, Repeat, Request, Waiter},
    resume_state::Remains,
    server_requests::Questions,
    session_processes::Processes,
    streams::{Bodies, Watches},
};
use crate::{
    client::ConnectionState,
    client_shared::Hub,
    error::{ExecServerError, chain},
    events::ProcessEvents,
    handshake::Opened,
};

/// How long a connection must last to count as one, if nothing was answered on it.
const SETTLED: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) link: Link,
    pub(super) number: ConnectionNumber,
    pub(super) encoding: Encoding,
    pub(super) windows: Windows,
    pub(super) calls: Calls<Sent>,
    pub(super) unanswered: usize,
    /// Messages that may be read although there is little room.
    pub(super) allowance: u32,
    pub(super) processes: Processes,
    /// Processes of the server whose events are not wanted any more; what still comes is of before.
    pub(super) releasing: BTreeSet<ProcessId>,
    /// Processes of the server that it was asked about: by their ids there may be others by now.
    pub(super) looking_up: Vec<Arc<ProcessEvents>>,
    /// Calls that wait for either. Bounded as those that are not answered.
    pub(super) deferred: Vec<Ask>,
    pub(super) watches: Watches,
    pub(super) bodies: Bodies,
    pub(super) questions: Questions,
    pub(super) hub: Arc<Hub>,
    /// What came before the session was there.
    pub(super) early: Vec<Bytes>,
    session: SessionId,
    opened_at: Instant,
    /// Why the connection before was given up.
    pub(super) cause: String,
    /// Since when nothing was achieved, while nothing is that should be.
    pub(super) since: Option<Instant>,
    /// How many calls were made.
    pub(super) asked: u64,
    /// The last of them that was answered.
    pub(super) answered: u64,
    /// Somebody was given a process, and has not had the time to follow it.
    pub(super) has_started: bool,
}

/// A call that waits for its answer.
pub(super) struct Sent {
    /// Which of the connection's calls.
    pub(super) number: u64,
    pub(super) method: MethodName,
    pub(super) repeat: Repeat,
    /// The process of the server that it is about, if it is about one.
    pub(super) about: Option<Arc<ProcessEvents>>,
    pub(super) waiter: Waiter,
    /// Makes the request again, if it may be made again.
    pub(super) again: Option<Request>,
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

/// Why a connection is given up.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Cause {
    /// Transport: it broke.
    #[error("{0}")]
    Transport(String),
    /// Peer: it sent what the protocol does not have.
    #[error("{0}")]
    Protocol(String),
}

impl From<Cause> for Disconnect {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Transport(text) => Self::Transport(text),
            Cause::Protocol(text) => Self::Protocol(text),
        }
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        Self::Transport(format!("connection cannot be written to: {error}"))
    }
}

impl From<ReadError> for Cause {
    fn from(error: ReadError) -> Self {
        let text = format!("connection cannot be read: {}", chain(&error));
        match error {
            ReadError::TooLong(_) | ReadError::Protocol(_) | ReadError::InvalidUtf8 => {
                Self::Protocol(text)
            }
            ReadError::Io(_) | _ => Self::Transport(text),
        }
    }
}

impl Connection {
    /// Takes a link into use, with nothing started and nothing asked.
    pub(super) fn new(opened: Opened, number: ConnectionNumber, hub: &Arc<Hub>) -> Self {
        let session = opened.session;
        let granted = |extension| session.extensions.contains(&extension);
        let encoding = if granted(Extension::BinaryData) {
            Encoding::Binary
        } else {
            Encoding::Text
        };
        let windows = if granted(Extension::Acknowledge) {
            Windows::PerProcess
        } else {
            Windows::Shared
        };
        let id = session.session_id.clone();
        hub.handle_session(session, windows == Windows::PerProcess);
        Self {
            link: opened.link,
            number,
            encoding,
            windows,
            // Bounded by whoever asks: callers by their number, others by that of processes.
            calls: Calls::new(usize::MAX),
            unanswered: 0,
            allowance: 0,
            processes: Processes::default(),
            releasing: BTreeSet::new(),
            looking_up: Vec::new(),
            deferred: Vec::new(),
            watches: Watches::default(),
            bodies: Bodies::default(),
            questions: Questions::default(),
            hub: Arc::clone(hub),
            early: opened.early,
            session: id,
            opened_at: Instant::now(),
            cause: String::new(),
            since: None,
            asked: 0,
            answered: 0,
            has_started: false,
        }
    }

    /// A call was answered: the connection is of use.
    pub(super) fn handle_use(&mut self, number: u64) {
        self.since = None;
        self.answered = self.answered.max(number);
    }

    /// Tells whether anything was answered.
    pub(super) fn has_answered(&self) -> bool {
        self.answered > 0
    }

    /// Returns how long it lasts.
    pub(super) fn age(&self) -> Duration {
        self.opened_at.elapsed()
    }

    /// Fails what cannot be made again, and keeps the rest. `gone`: nothing will be made again.
    pub(super) fn into_remains(mut self, cause: &Cause, gone: Option<&Disconnect>) -> Remains {
        // One that lasted was of use, though nothing was answered: what was asked may take its time.
        let since = self.since.filter(|_| self.age() < SETTLED);
        self.processes.past.handle_answered(self.answered);
        self.watches.disconnect();
        self.bodies.disconnect(&cause.clone().into());
        let mut remains = Remains {
            session: self.session,
            cause: cause.to_string(),
            since: since.unwrap_or_else(Instant::now),
            processes: self.processes,
            pending: Vec::new(),
            repeats: Vec::new(),
            unsent: self.deferred,
        };
        for Sent {
            method,
            repeat,
            about,
            waiter,
            again,
            ..
        } in self.calls.drain()
        {
            match (waiter, again) {
                // They are asked about anew, if their processes are still of interest.
                (Waiter::End(_) | Waiter::Release(_), _) => {}
                (Waiter::Attach(pending, process, _), _) => {
                    remains.pending.push((pending, process));
                }
                (Waiter::List(processes), _) => remains.pending.extend(processes),
                (Waiter::Fill(process), _) => process.handle_unread(),
                (Waiter::Start(reply, process), _) => {
                    remains.pending.push((Pending::Start(reply), process));
                }
                (Waiter::Adopt(reply, process), _) => {
                    process.handle_unread();
                    remains.pending.push((Pending::Start(reply), process));
                }
                (waiter, Some(request)) => {
                    if waiter.is_awaited() || repeat == Repeat::Always {
                        remains.repeats.push(Ask {
                            method,
                            request,
                            repeat,
                            about,
                            waiter,
                        });
                    }
                }
                (waiter, None) => waiter.fail(match gone {
                    Some(gone) => gone.clone().into(),
                    None => ExecServerError::Interrupted {
                        method: method.as_str(),
                        reason: cause.to_string(),
                    },
                }),
            }
        }
        remains
    }
}

/// What is encoded before it is flushed although more is asked.
const GATHER_BYTES: usize = 256 << 10;
/// Messages that are handled in a row, if they are there, before anything else is looked at.
const READ_AT_ONCE: usize = 64;
/// How long a peer may take to read the last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Connection {
    /// Runs until nobody needs the connection, or it breaks.
    pub(super) async fn drive(&mut self, queue: &mut Queue) -> Result<(), Cause> {
        for message in std::mem::take(&mut self.early) {
            self.handle_message(&message)?;
        }
        loop {
            let room = self.room();
            let may_read = room == Room::Enough || (room == Room::Little && self.allowance > 0);
            let slow = room == Room::Little && self.allowance == 0;
            let may_ask = self.may_ask();
            tokio::select! {
                flushed = tend(&mut *self.link.writer) => {
                    flushed?;
                    self.questions.handle_flushed();
                }
                message = self.link.reader.next(), if may_read => {
                    let message = message?.ok_or_else(hung_up)?;
                    self.allowance = self.allowance.saturating_sub(1);
                    self.handle_message(&message)?;
                    self.read_on()?;
                    if std::mem::take(&mut self.has_started) {
                        // Output that is here already may be more than is retained for somebody who
                        // does not follow yet.
                        yield_now().await;
                    }
                }
                () = sleep(SLOW_PERIOD), if slow => self.allowance = SLOW_MESSAGES,
                ask = queue.next(), if may_ask => match ask {
                    Some(ask) => {
                        // What was let go of before makes room for it.
                        self.handle_poked();
                        self.handle_ask(ask);
                        self.take_asked(queue)?;
                    }
                    None => {
                        self.handle_poked();
                        // A peer that does not take them finds the connection closed all the same.
                        drop(timeout(LAST_WORDS, self.link.writer.close()).await);
                        return Ok(());
                    }
                },
                answer = self.questions.next_answer(), if !self.questions.is_empty() => {
                    self.say(answer);
                }
                () = self.hub.poked() => self.handle_poked(),
                path = changed(&mut self.link.path) => self.hub.set_connection(match path {
                    Path::There => ConnectionState::Connected,
                    Path::Lost => ConnectionState::Reconnecting,
                }),
            }
        }
    }

    /// Handles what else was read already.
    fn read_on(&mut self) -> Result<(), Cause> {
        for _ in 0..READ_AT_ONCE {
            if self.has_started || self.room() != Room::Enough {
                break;
            }
            let Some(message) = self.link.reader.next().now_or_never() else {
                break;
            };
            self.handle_message(&message?.ok_or_else(hung_up)?)?;
        }
        Ok(())
    }

    /// Takes what else was asked already, and sends it without going to sleep before.
    fn take_asked(&mut self, queue: &mut Queue) -> Result<(), Cause> {
        while self.may_ask()
            && let Some(ask) = queue.try_next()
        {
            self.handle_ask(ask);
        }
        if let Some(flushed) = self.link.writer.flush().now_or_never() {
            flushed?;
            self.questions.handle_flushed();
        }
        Ok(())
    }

    /// Tells whether the link takes another request.
    fn may_ask(&self) -> bool {
        self.link.writer.buffered() < GATHER_BYTES && self.unanswered < self.link.most_unanswered
    }

    /// Tells whether there is room for what would be read.
    fn room(&self) -> Room {
        let look = || Room::with(self.windows, self.hub.lag(), self.hub.is_awaited());
        let full = look() != Room::Enough;
        self.hub.set_full(full);
        // Looked at again: who caught up before it was said that this matters told nobody.
        if full { look() } else { Room::Enough }
    }
}

/// Waits until the path below a link is lost, or found again.
async fn changed(path: &mut Option<watch::Receiver<Path>>) -> Path {
    if let Some(watched) = path
        && watched.changed().await.is_ok()
    {
        return *watched.borrow_and_update();
    }
    // There is none, or it is over: so is the link then, and it says so itself.
    std::future::pending().await
}

fn hung_up() -> Cause {
    Cause::Transport("server hung up".to_owned())
}

/// Flushes what is buffered, or waits until the link itself has something to flush.
async fn tend(writer: &mut dyn MessageWriter) -> io::Result<()> {
    if writer.buffered() == 0 {
        poll_fn(|cx| writer.poll_upkeep(cx)).await;
    }
    writer.flush().await
}
