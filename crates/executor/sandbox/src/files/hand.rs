//! One hand, as the server sees it.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use exec_env::filesystem::FileError;
use exec_process::{
    enclosure::Enclosure,
    spawner::{Child, Extra, Spawner, Spec},
};
use tokio::time::timeout;

use super::{
    boot,
    channel::{Broken, Channel},
    frame::Frame,
    request::Reply,
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
        argv: vec![boot::NAME.to_owned()],
        env: Vec::new(),
        cwd: c"/".to_owned(),
        stdin: duplicate()?,
        stdout: duplicate()?,
        stderr: duplicate()?,
        terminal: false,
        extra: vec![Extra {
            fd: socket,
            target: boot::SOCKET,
        }],
        limits: Vec::new(),
        enclosure: None,
    })
}

/// How long a hand may take to be enclosed; on a busy machine it takes milliseconds.
const START_TIME: Duration = Duration::from_secs(10);
