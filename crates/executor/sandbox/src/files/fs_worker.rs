//! One hand, as the server sees it.
//!
//! The server's end of the socket to a hand.

use std::{
    fs::File,
    hint, io,
    num::NonZeroUsize,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix,
    },
    thread,
    time::{Duration, Instant},
};

use exec_env::filesystem::FileError;
use exec_process::spawner::{Child, Extra, Spawner, Spec};
use exec_spawn::enclosure::Enclosure;
use tokio::{io::Interest, net::UnixStream, time::timeout};

use super::{
    worker_frame::{Class, Frame, Incoming, Outgoing},
    worker_loop,
    worker_request::Reply,
};

/// A process that does what it is asked, enclosed. It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Hand {
    channel: Channel,
    child: Child,
    started: Instant,
}

impl Hand {
    /// Starts one, and waits until it is enclosed.
    pub(super) async fn start(spawner: &Spawner, enclosure: Enclosure) -> Result<Self, FileError> {
        let begin = async {
            let failed = |error: &dyn std::error::Error| not_started(&error.to_string());
            let (channel, theirs) = Channel::pair().map_err(|error| failed(&error))?;
            let spec = spec(theirs.into()).map_err(|error| failed(&error))?;
            let child = spawner.spawn(spec).await;
            let child = child.map_err(|error| not_started(&error.explained()))?;
            let mut hand = Self {
                channel,
                child,
                started: Instant::now(),
            };
            let text = enclosure.encode();
            let descriptors = enclosure.descriptors();
            let entered = hand.channel.exchange(&text, &[], &descriptors).await;
            Reply::from_frame(entered.map_err(ended)?)?;
            Ok(hand)
        };
        timeout(START_TIME, begin)
            .await
            .unwrap_or_else(|_| Err(not_started("it took too long")))
    }

    /// Asks it for something. If the future is dropped, the hand is of no further use.
    pub(super) async fn exchange(&mut self, text: &[u8], data: &[u8]) -> Result<Frame, Broken> {
        self.channel.exchange(text, data, &[]).await
    }

    /// Waits for what it tells without being asked again. Cancelling loses nothing.
    pub(super) async fn next(&mut self) -> io::Result<Frame> {
        self.channel.next().await
    }

    /// Tells for how long it has been there.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the operating system's number for it.
    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }
}

/// Says that a hand is gone, and with it the answer.
pub(super) fn ended(broken: Broken) -> FileError {
    let (Broken::Unsent(error) | Broken::Unanswered(error)) = broken;
    if error.kind() == io::ErrorKind::InvalidData {
        return FileError::Host("file helper broke the protocol".to_owned());
    }
    FileError::Host("file helper ended".to_owned())
}

fn not_started(why: &str) -> FileError {
    FileError::Host(format!("file helper could not be started: {why}"))
}

/// Nothing of the server's environment reaches a hand.
fn spec(socket: OwnedFd) -> io::Result<Spec> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let duplicate = || null.as_fd().try_clone_to_owned();
    Ok(Spec {
        candidates: vec![c"/proc/self/exe".to_owned()],
        argv: vec![worker_loop::NAME.to_owned()],
        env: Vec::new(),
        cwd: c"/".to_owned(),
        stdin: duplicate()?,
        stdout: duplicate()?,
        stderr: duplicate()?,
        terminal: false,
        extra: vec![Extra {
            fd: socket,
            target: worker_loop::SOCKET,
        }],
        limits: Vec::new(),
        enclosure: None,
    })
}

/// How long a hand may take to be enclosed; on a busy machine it takes milliseconds.
const START_TIME: Duration = Duration::from_secs(10);

/// The server's end of the socket.
#[derive(Debug)]
pub(super) struct Channel {
    socket: UnixStream,
    incoming: Incoming,
    attention: Duration,
}

/// How long an answer is looked for before the thread waits for it: most come sooner than a core wakes
/// up. With one core there is nobody to answer meanwhile.
const ATTENTION: Duration = Duration::from_micros(80);

/// Why nothing was answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The other end was gone before it got anything.
    #[error("nothing was sent")]
    Unsent(#[source] io::Error),
    /// The other end may have got it, and done it.
    #[error("nothing was answered")]
    Unanswered(#[source] io::Error),
}

impl Channel {
    /// Makes one, and the hand's end of it.
    pub(super) fn pair() -> io::Result<(Self, unix::net::UnixStream)> {
        let (ours, theirs) = unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let channel = Self {
            socket: UnixStream::from_std(ours)?,
            incoming: Incoming::default(),
            attention: if cores > 1 { ATTENTION } else { Duration::ZERO },
        };
        Ok((channel, theirs))
    }

    /// Asks, and waits for the answer. If it is dropped in between, the channel is of no further use.
    pub(super) async fn exchange(
        &mut self,
        text: &[u8],
        data: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Frame, Broken> {
        let mut outgoing = Outgoing::new(Class::Good, text, data).with(descriptors);
        loop {
            let send = || outgoing.send(&self.socket);
            match self.socket.async_io(Interest::WRITABLE, send).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) if outgoing.has_begun() => return Err(Broken::Unanswered(error)),
                Err(error) => return Err(Broken::Unsent(error)),
            }
        }
        let asked = Instant::now();
        while asked.elapsed() < self.attention {
            // The socket itself: the runtime would not look again before it has heard of something.
            match self.incoming.receive(&self.socket) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => hint::spin_loop(),
                Err(error) => return Err(Broken::Unanswered(error)),
            }
        }
        self.next().await.map_err(Broken::Unanswered)
    }

    /// Waits for what the hand says next. Cancelling loses nothing.
    pub(super) async fn next(&mut self) -> io::Result<Frame> {
        loop {
            let incoming = &mut self.incoming;
            let receive = || incoming.receive(&self.socket);
            if let Some(frame) = self.socket.async_io(Interest::READABLE, receive).await? {
                return Ok(frame);
            }
        }
    }
}
