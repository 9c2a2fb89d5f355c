//! A link to a program: lines on its standard input and output, and the news of its end.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use exec_wire::outgoing::Outgoing;
use futures_util::future::{FutureExt, Shared};
use tokio::{
    process::{ChildStdin, ChildStdout},
    sync::oneshot,
    time::{Sleep, sleep},
};

use super::Exit;
use crate::{
    lines,
    link::{Encoding, Link, MessageReader, MessageWriter, ReadError, Role},
};

/// How far apart the end of a program and the end of its output may be. It may close its output and
/// live on, and others may hold its output when it is gone.
const APART: Duration = Duration::from_secs(1);

/// Keeps a program for as long as it is held.
#[derive(Clone, Debug)]
pub(super) struct Held {
    _held: Arc<oneshot::Sender<Infallible>>,
}

impl Held {
    /// Makes a hold, and what resolves when its last clone is dropped.
    pub(super) fn new() -> (Self, oneshot::Receiver<Infallible>) {
        let (held, released) = oneshot::channel();
        let held = Self {
            _held: Arc::new(held),
        };
        (held, released)
    }
}

/// Makes a link of a program's input and output.
pub(super) fn link(
    (input, output): (ChildStdin, ChildStdout),
    held: &Held,
    exit: oneshot::Receiver<Exit>,
    peer: &str,
) -> Link {
    let link = lines::link(output, input, Role::Client, peer);
    let fate = Fate::Awaited(exit.shared());
    Link {
        reader: Box::new(Reader {
            lines: link.reader,
            ended: false,
            patience: Patience::default(),
            fate: fate.clone(),
            _held: held.clone(),
        }),
        writer: Box::new(Writer {
            lines: link.writer,
            patience: Patience::default(),
            fate,
            _held: held.clone(),
        }),
        ..link
    }
}

/// Messages from a program.
#[derive(Debug)]
struct Reader {
    lines: Box<dyn MessageReader>,
    /// Whether its output has ended.
    ended: bool,
    patience: Patience,
    fate: Fate,
    _held: Held,
}

impl MessageReader for Reader {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ReadError>> {
        if !self.ended {
            match self.lines.poll_message(cx) {
                Poll::Ready(Ok(None)) => self.ended = true,
                Poll::Pending => {}
                message @ Poll::Ready(_) => return message,
            }
        }
        let exit = self.fate.poll_exit(cx);
        match (self.ended, &exit) {
            (false, Poll::Pending) => return Poll::Pending,
            (true, Poll::Ready(_)) => {}
            (true, Poll::Pending) | (false, Poll::Ready(_)) => ready!(self.patience.poll_out(cx)),
        }
        Poll::Ready(match exit {
            Poll::Ready(exit) => Err(ReadError::Exited(exit)),
            Poll::Pending => Ok(None),
        })
    }
}

/// Messages to a program.
#[derive(Debug)]
struct Writer {
    lines: Box<dyn MessageWriter>,
    patience: Patience,
    fate: Fate,
    _held: Held,
}

impl Writer {
    /// Waits for the reason why nobody reads any more.
    fn poll_reason(
        &mut self,
        cx: &mut Context<'_>,
        written: io::Result<()>,
    ) -> Poll<io::Result<()>> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                let Poll::Ready(exit) = self.fate.poll_exit(cx) else {
                    ready!(self.patience.poll_out(cx));
                    return Poll::Ready(Err(error));
                };
                Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::BrokenPipe,
                    ReadError::Exited(exit),
                )))
            }
            written => Poll::Ready(written),
        }
    }
}

impl MessageWriter for Writer {
    fn push(&mut self, message: Outgoing, encoding: Encoding) {
        self.lines.push(message, encoding);
    }

    fn buffered(&self) -> usize {
        self.lines.buffered()
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = ready!(self.lines.poll_flush(cx));
        self.poll_reason(cx, written)
    }

    fn poll_upkeep(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.lines.poll_upkeep(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = ready!(self.lines.poll_close(cx));
        self.poll_reason(cx, written)
    }
}

/// How the program ended, for whoever asks.
#[derive(Clone, Debug)]
enum Fate {
    Awaited(Shared<oneshot::Receiver<Exit>>),
    Known(Exit),
}

impl Fate {
    fn poll_exit(&mut self, cx: &mut Context<'_>) -> Poll<Exit> {
        let exit = match self {
            Self::Known(exit) => exit.clone(),
            Self::Awaited(exit) => {
                // Its keeper is gone without a word when the runtime is shut down.
                let exit = ready!(Pin::new(exit).poll(cx)).unwrap_or_default();
                *self = Self::Known(exit.clone());
                exit
            }
        };
        Poll::Ready(exit)
    }
}

/// A wait that begins when it is first asked for.
#[derive(Debug, Default)]
struct Patience(Option<Pin<Box<Sleep>>>);

impl Patience {
    /// Resolves when patience has run out.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let wait = self.0.get_or_insert_with(|| Box::pin(sleep(APART)));
        wait.as_mut().poll(cx)
    }
}
