//! The bare TCP echo: one small message to another process and back.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::helper::{self, Helper};

/// Bytes of the message: about what a keystroke is without any envelope.
const MESSAGE: usize = 16;

/// A connection to an echo process.
#[derive(Debug)]
pub(crate) struct Echo(Helper);

impl Echo {
    /// Starts the echo process.
    pub(crate) fn start() -> Result<Self> {
        Helper::start(&["echo-floor"]).map(Self)
    }

    /// Sends one message and waits for it to come back.
    pub(crate) fn round_trip(&mut self) -> Result<Duration> {
        let mut message = [b'x'; MESSAGE];
        let began = Instant::now();
        self.0.stream.write_all(&message)?;
        self.0.stream.read_exact(&mut message)?;
        Ok(began.elapsed())
    }
}

/// The echo process: returns what it gets until the connection ends.
pub(crate) fn serve() -> Result<()> {
    let mut stream = helper::accept()?;
    let mut buffer = [0; 256];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => stream.write_all(&buffer[..read])?,
        }
    }
}
