//! Helper processes of the floors: this binary, run with a hidden subcommand; and the TCP floors
//! `echo` (one small message and back) and `exchange` (a request and a response of given sizes).

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Longest wait for a helper.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A helper process and the connection to it; ends with it.
#[derive(Debug)]
pub(super) struct Helper {
    child: Child,
    /// The connection.
    pub(super) stream: TcpStream,
}

impl Helper {
    /// Starts this binary as `part`, with its arguments, and connects to it.
    pub(super) fn start(part: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(part)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().context("no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let stream = TcpStream::connect(line.trim()).context("helper process did not start")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
        Ok(Self { child, stream })
    }

    /// Returns its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It may have exited already.
        if self.child.kill().is_ok() {
            drop(self.child.wait());
        }
    }
}

/// Prints the helper's address and returns its only connection.
pub(super) fn accept() -> Result<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Bytes of the message: about what a keystroke is without any envelope.
const MESSAGE: usize = 16;

/// A connection to an echo process.
#[derive(Debug)]
pub(crate) struct EchoFloor(Helper);

impl EchoFloor {
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
pub(crate) fn serve_echo() -> Result<()> {
    let mut stream = accept()?;
    let mut buffer = [0; 256];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => stream.write_all(&buffer[..read])?,
        }
    }
}

/// A connection to an exchange process.
#[derive(Debug)]
pub(crate) struct ExchangeFloor {
    helper: Helper,
    request: Vec<u8>,
    response: Vec<u8>,
}

impl ExchangeFloor {
    /// Starts the exchange process, for requests and answers of these sizes.
    pub(crate) fn start(request: usize, response: usize) -> Result<Self> {
        let sizes = [request.to_string(), response.to_string()];
        Ok(Self {
            helper: Helper::start(&["exchange-floor", &sizes[0], &sizes[1]])?,
            request: vec![b'x'; request],
            response: vec![0; response],
        })
    }

    /// Sends one request and waits for its answer.
    pub(crate) fn round_trip(&mut self) -> Result<()> {
        self.helper.stream.write_all(&self.request)?;
        self.helper.stream.read_exact(&mut self.response)?;
        Ok(())
    }
}

/// The exchange process: answers every request until the connection ends.
pub(crate) fn serve_exchange(request: usize, response: usize) -> Result<()> {
    let mut stream = accept()?;
    let mut request = vec![0; request];
    let response = vec![b'x'; response];
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(&response)?;
    }
    Ok(())
}
