//! Helper processes: this binary, run with a hidden subcommand.
//!
//! Most are floors, the performance of this machine without a server. Like a server, the peer of a
//! floor runs in another process. The floors are `echo` (one small message and back), `exchange` (a
//! request and a response of given sizes) and `copy` (a child's output from a pipe to a socket).
//! `emit` is the child of the throughput measures, and `listen` that of the tunnels.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::measures::OutputTransfer;
use crate::process_usage::ProcessUsage;
use crate::websocket::READ_BUFFER;

/// Longest wait for a helper.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A helper process and the connection to it. Dropping it kills the process.
#[derive(Debug)]
struct HelperProcess {
    child: Child,
    /// Connection to the helper.
    stream: TcpStream,
}

impl HelperProcess {
    /// Starts this binary with `args` and connects to it.
    fn start(args: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(args)
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

    /// Returns the helper's pid.
    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        // The process may already have exited.
        if self.child.kill().is_ok() {
            drop(self.child.wait());
        }
    }
}

/// Prints the helper's address and returns its only connection.
fn accept() -> Result<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Bytes of the message: about the size of a keystroke without an envelope.
const MESSAGE: usize = 16;

/// Connection to an echo process.
#[derive(Debug)]
pub(crate) struct EchoFloor(HelperProcess);

impl EchoFloor {
    /// Starts the echo process.
    pub(crate) fn start() -> Result<Self> {
        HelperProcess::start(&["echo-floor"]).map(Self)
    }

    /// Sends one message and waits for its echo.
    pub(crate) fn round_trip(&mut self) -> Result<Duration> {
        let mut message = [b'x'; MESSAGE];
        let started_at = Instant::now();
        self.0.stream.write_all(&message)?;
        self.0.stream.read_exact(&mut message)?;
        Ok(started_at.elapsed())
    }
}

/// Runs the echo process: sends received bytes back until the connection ends.
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

/// Connection to an exchange process.
#[derive(Debug)]
pub(crate) struct ExchangeFloor {
    helper: HelperProcess,
    request: Vec<u8>,
    response: Vec<u8>,
}

impl ExchangeFloor {
    /// Starts the exchange process for requests and responses of these sizes.
    pub(crate) fn start(request: usize, response: usize) -> Result<Self> {
        let sizes = [request.to_string(), response.to_string()];
        Ok(Self {
            helper: HelperProcess::start(&["exchange-floor", &sizes[0], &sizes[1]])?,
            request: vec![b'x'; request],
            response: vec![0; response],
        })
    }

    /// Sends one request and waits for the response.
    pub(crate) fn round_trip(&mut self) -> Result<()> {
        self.helper.stream.write_all(&self.request)?;
        self.helper.stream.read_exact(&mut self.response)?;
        Ok(())
    }
}

/// Runs the exchange process: answers every request until the connection ends.
pub(crate) fn serve_exchange(request: usize, response: usize) -> Result<()> {
    let mut stream = accept()?;
    let mut request = vec![0; request];
    let response = vec![b'x'; response];
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(&response)?;
    }
    Ok(())
}

/// Bytes per read from the pipe: the default capacity of a pipe.
const PIPE_BLOCK: usize = 64 * 1024;

/// Connection to a copy process.
#[derive(Debug)]
pub(crate) struct CopyFloor {
    helper: HelperProcess,
    buffer: Vec<u8>,
}

impl CopyFloor {
    /// Starts the copy process.
    pub(crate) fn start() -> Result<Self> {
        Ok(Self {
            helper: HelperProcess::start(&["copy-floor"])?,
            buffer: vec![0; READ_BUFFER],
        })
    }

    /// Makes a child write `bytes` bytes and reads all of them.
    pub(crate) fn transfer(&mut self, bytes: u64) -> Result<OutputTransfer> {
        let pid = self.helper.pid();
        let stream = &mut self.helper.stream;
        let before = ProcessUsage::sample(pid);
        let started_at = Instant::now();
        stream.write_all(&bytes.to_be_bytes())?;
        let mut remaining = bytes;
        while remaining > 0 {
            let read = stream.read(&mut self.buffer)?;
            ensure!(read > 0, "the copy ended early");
            remaining = remaining
                .checked_sub(read as u64)
                .context("copy returned too many bytes")?;
        }
        let elapsed = started_at.elapsed();
        let cpu = ProcessUsage::sample(pid).cpu_since(&before);
        // Release the child and wait until it is reaped, so that the next sample excludes it.
        stream.write_all(&[0])?;
        stream.read_exact(&mut [0])?;
        Ok(OutputTransfer::new(bytes, elapsed, Some(cpu)))
    }
}

/// Runs the copy process: for every length received, spawns a child that writes that many bytes.
pub(crate) fn serve_copy() -> Result<()> {
    let mut stream = accept()?;
    let mut length = [0; 8];
    let mut buffer = vec![0; PIPE_BLOCK];
    while stream.read_exact(&mut length).is_ok() {
        let bytes = u64::from_be_bytes(length).to_string();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["emit", bytes.as_str(), "--hold"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdout = child.stdout.take().context("no stdout")?;
        let mut remaining = u64::from_be_bytes(length);
        while remaining > 0 {
            let read = stdout.read(&mut buffer)?;
            ensure!(read > 0, "the child ended early");
            stream.write_all(&buffer[..read])?;
            remaining = remaining.saturating_sub(read as u64);
        }
        // Reap the child only after the client's sample: see `emit_and_hold`.
        stream.read_exact(&mut [0])?;
        drop(stdout);
        child.wait()?;
        stream.write_all(&[0])?;
    }
    Ok(())
}

/// A core of our affinity mask, to place the two ends of a floor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CpuCore {
    /// The first core.
    First,
    /// The last core; also the first if there is only one.
    Last,
}

impl CpuCore {
    /// Runs `work` on this core only. Processes that it spawns inherit the placement.
    pub(crate) fn run<T>(self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let original = sched_getaffinity(None).context("cannot read the CPU affinity")?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| original.is_set(core));
        let core = match self {
            Self::First => cores.next(),
            Self::Last => cores.next_back(),
        };
        let mut single = CpuSet::new();
        single.set(core.context("CPU affinity mask is empty")?);
        sched_setaffinity(None, &single).context("cannot set the CPU affinity")?;
        let result = work();
        sched_setaffinity(None, &original).context("cannot restore the CPU affinity")?;
        result
    }
}

/// Bytes per write, like a program with well-buffered output.
const EMIT_BLOCK: usize = 64 * 1024;

/// Writes `bytes` bytes to stdout as fast as possible. A closed reader is a normal exit.
pub(crate) fn emit(bytes: u64) -> anyhow::Result<()> {
    // `io::stdout` would search every block for newlines.
    let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let block = [b'x'; EMIT_BLOCK];
    let mut remaining = bytes;
    while remaining > 0 {
        let size =
            usize::try_from(remaining).map_or(EMIT_BLOCK, |remaining| remaining.min(EMIT_BLOCK));
        match stdout.write_all(&block[..size]) {
            Ok(()) => remaining -= size as u64,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Runs [`emit`], then waits for a byte or the end of stdin.
///
/// While this process waits, the CPU time of reaped children covers only the server's helpers.
pub(crate) fn emit_and_hold(bytes: u64) -> anyhow::Result<()> {
    emit(bytes)?;
    let mut byte = [0];
    let _read: usize = io::stdin().read(&mut byte)?;
    Ok(())
}

/// Listens on a port of loopback after a delay, says so, and waits for the end of stdin.
pub(crate) fn listen(delay: Duration) -> anyhow::Result<()> {
    thread::sleep(delay);
    let _listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinity_is_restored_after_work_on_one_core() {
        let count = || Ok(sched_getaffinity(None)?.count());
        let all = count().unwrap();
        assert_eq!(CpuCore::First.run(count).unwrap(), 1);
        assert_eq!(CpuCore::Last.run(count).unwrap(), 1);
        assert_eq!(count().unwrap(), all);
    }
}
