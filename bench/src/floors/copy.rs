//! The pipe to TCP copy: a process reads its child's output and writes it to a socket, no more.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::helper::{self, Helper};
use crate::measures::Transfer;
use crate::proc_stat::Usage;
use crate::ws::READ_BUFFER;

/// Bytes per read from the pipe: all that a pipe holds by default.
const BLOCK: usize = 64 * 1024;

/// A connection to a copy process.
#[derive(Debug)]
pub(crate) struct Copy {
    helper: Helper,
    buffer: Vec<u8>,
}

impl Copy {
    /// Starts the copy process.
    pub(crate) fn start() -> Result<Self> {
        Ok(Self {
            helper: Helper::start(&["copy-floor"])?,
            buffer: vec![0; READ_BUFFER],
        })
    }

    /// Has a child write `bytes` bytes and reads them all.
    pub(crate) fn transfer(&mut self, bytes: u64) -> Result<Transfer> {
        let pid = self.helper.pid();
        let stream = &mut self.helper.stream;
        let before = Usage::sample(pid);
        let began = Instant::now();
        stream.write_all(&bytes.to_be_bytes())?;
        let mut left = bytes;
        while left > 0 {
            let read = stream.read(&mut self.buffer)?;
            ensure!(read > 0, "the copy ended early");
            left = left
                .checked_sub(read as u64)
                .context("copy returned too many bytes")?;
        }
        let took = began.elapsed();
        let cpu = Usage::sample(pid).cpu_since(&before);
        // Releases the child and waits until it is reaped, so that the next sample starts after
        // that.
        stream.write_all(&[0])?;
        stream.read_exact(&mut [0])?;
        Ok(Transfer::new(bytes, took, Some(cpu)))
    }
}

/// The copy process: for every length it is sent, spawns a child that writes as much.
pub(crate) fn serve() -> Result<()> {
    let mut stream = helper::accept()?;
    let mut length = [0; 8];
    let mut buffer = vec![0; BLOCK];
    while stream.read_exact(&mut length).is_ok() {
        let bytes = u64::from_be_bytes(length).to_string();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["emit", bytes.as_str(), "--hold"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdout = child.stdout.take().context("no stdout")?;
        let mut left = u64::from_be_bytes(length);
        while left > 0 {
            let read = stdout.read(&mut buffer)?;
            ensure!(read > 0, "the child ended early");
            stream.write_all(&buffer[..read])?;
            left = left.saturating_sub(read as u64);
        }
        // Only once the client has taken its sample may the child be reaped: see `emit_and_hold`.
        stream.read_exact(&mut [0])?;
        drop(stdout);
        child.wait()?;
        stream.write_all(&[0])?;
    }
    Ok(())
}
