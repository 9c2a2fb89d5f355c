//! Helper processes of the floors: this binary, run with a hidden subcommand.

use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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
