//! Passes bytes between stdin and stdout and the background server of this account.
//!
//! A client on another machine runs it through `ssh` or a container engine, and speaks websocket to
//! the server through it. Nothing here interprets the bytes.

use std::{
    fs::File,
    io::{self, Read, Write},
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream},
};

use anyhow::{Context, anyhow};
use exec_settings::{
    background_server::{self, BackgroundServerError, OutdatedServer},
    local_socket::LocalSocket,
};

/// Joins the background server, or starts it, and passes bytes until either end closes. First
/// upgrades a server of an earlier version that has no other connection.
///
/// # Errors
/// When the server cannot be reached or started.
pub async fn run_bridge() -> anyhow::Result<()> {
    let socket = LocalSocket::find(&|name| std::env::var_os(name));
    let checked = check_version(&socket).await;
    checked.map_err(|error| anyhow!("{error}; {}", error.next_step()))?;
    let stream = background_server::open_stream(&socket).await;
    let stream = stream.map_err(|error| anyhow!("{error}; {}", error.next_step()))?;
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let passed = tokio::task::spawn_blocking(move || pass(&stream)).await;
    passed
        .context("cannot start a thread")?
        .context("connection broke")
}

/// Upgrades a server of an earlier version, or says on stderr that it goes on. The client at the
/// other end cannot do that, because the newer program is here.
async fn check_version(socket: &LocalSocket) -> Result<(), BackgroundServerError> {
    let client = background_server::connect(socket, "exec-server bridge").await?;
    if let Some(outdated) = OutdatedServer::of(&client)
        && !outdated.upgrade_if_idle(socket, &client).await
    {
        // A failure cannot be reported anywhere.
        drop(writeln!(io::stderr().lock(), "exec-server: {outdated}"));
    }
    Ok(())
}

/// Passes bytes in both directions. Ends with the server; the other thread may still wait for
/// stdin then, and ends with the process.
fn pass(server: &UnixStream) -> io::Result<()> {
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut input = server.try_clone()?;
    std::thread::Builder::new().spawn(move || {
        // The server sees the end of input or the error as a closed connection.
        drop(copy(&mut stdin, &mut input));
        drop(input.shutdown(Shutdown::Write));
    })?;
    let copied = copy(&mut &*server, &mut stdout);
    match copied {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Copies until the end. `io::copy` would splice: that locks a pipe while it waits for the socket,
/// and the reader of the pipe with it.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        match from.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&block[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Capacity of a pipe.
const BLOCK_BYTES: usize = 64 << 10;
