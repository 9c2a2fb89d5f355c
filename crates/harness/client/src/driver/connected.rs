//! Connected: the loop that reads and writes.

use std::{future::poll_fn, io, time::Duration};

use exec_transport::link::{MessageWriter, Path};
use futures_util::FutureExt;
use tokio::{
    sync::watch,
    task::yield_now,
    time::{sleep, timeout},
};

use super::{
    connection::{Cause, Connection},
    queue::Queue,
    room::{Room, SLOW_MESSAGES, SLOW_PERIOD},
};
use crate::connection::ConnectionState;

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
