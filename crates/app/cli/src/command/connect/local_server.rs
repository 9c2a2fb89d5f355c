//! Connects to this machine's own server, and starts it if none is running. The client checks the
//! peer's credentials.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use exec_client::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    connect::RemoteConnector,
    error::{ConnectError, ExecServerError},
};
use exec_settings::{
    local_socket::{LocalSocket, LocalSocketError},
    settings_source,
};
use exec_transport::listen_url::lock_path;
use rustix::fs::OFlags;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::{Instant, sleep, timeout_at},
};

use crate::command::{
    connect::route::TOKEN,
    failure::{CommandFailure, FailureKind},
};

/// Limit until the server answers, including all retries.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of server starts.
const MAX_STARTS: u32 = 3;
/// How long a server may take to bind its socket again after the file was removed.
const REBIND_TIMEOUT: Duration = Duration::from_secs(4);
/// Poll interval while another process holds the lock or the socket.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Connects to the local server, and starts it if none is running.
pub(super) async fn connect(
    socket: &LocalSocket,
    client: &str,
) -> Result<ExecServerClient, CommandFailure> {
    socket.secure().map_err(unsafe_directory)?;
    match try_connect(socket, client).await {
        Err(error) if is_absent(&error) => {}
        outcome => return outcome.map_err(|error| unreachable(socket, &error)),
    }
    let deadline = Instant::now() + TIMEOUT;
    let _lock = lock(socket, deadline).await?;
    let rebind_deadline = Instant::now() + REBIND_TIMEOUT;
    let mut starts = 0;
    loop {
        // Another process may have started it while it held the lock.
        let error = match try_connect(socket, client).await {
            Err(error) if is_absent(&error) => error,
            outcome => return outcome.map_err(|error| unreachable(socket, &error)),
        };
        if starts == MAX_STARTS || Instant::now() >= deadline {
            return Err(unreachable(socket, &error));
        }
        starts += 1;
        match start(socket, deadline).await {
            Ok(()) => {}
            // A server binds its socket again soon after the file was removed.
            Err(_) if Instant::now() < rebind_deadline && is_served(socket) => {
                starts = 0;
                sleep(REBIND_TIMEOUT / 20).await;
            }
            // A server that is exiting may still hold the socket.
            Err(_) if starts < MAX_STARTS => sleep(POLL_INTERVAL).await,
            Err(failure) => return Err(failure),
        }
    }
}

async fn try_connect(
    socket: &LocalSocket,
    client: &str,
) -> Result<ExecServerClient, ExecServerError> {
    let connector = RemoteConnector::own_unix(socket.path());
    ExecServerClient::connect_with(Arc::new(connector), options(client)).await
}

pub(super) fn options(client: &str) -> ExecServerClientConnectOptions {
    ExecServerClientConnectOptions {
        client_name: client.to_owned(),
        ..ExecServerClientConnectOptions::default()
    }
}

/// Returns whether no server is listening, or one is just exiting.
fn is_absent(error: &ExecServerError) -> bool {
    matches!(
        error,
        ExecServerError::Connect(
            ConnectError::Link(_) | ConnectError::Busy(_) | ConnectError::Broken(_)
        )
    )
}

fn unsafe_directory(error: LocalSocketError) -> CommandFailure {
    let what = format!("{error}: {}", error.source);
    CommandFailure::new(FailureKind::Unreachable, what)
        .next("make it a directory of your own with mode 0700, or set EXEC_SERVER_SOCKET")
}

pub(super) fn unreachable(socket: &LocalSocket, error: &ExecServerError) -> CommandFailure {
    let what = format!("cannot reach the server of this machine: {error}");
    let failure = CommandFailure::new(FailureKind::Unreachable, what);
    if let ExecServerError::Connect(ConnectError::Address(_)) = error {
        return failure.next(
            "run the command outside the sandbox: commands for this machine do not work inside",
        );
    }
    let path = socket.path().display();
    if let ExecServerError::Connect(ConnectError::Rejected(_)) = error {
        return failure.next(format!(
            "stop the process that listens there, or name it with -E unix://{path} if you trust it"
        ));
    }
    failure.next(format!(
        "see {}, and check which process listens on {path}",
        socket.sibling("log").display(),
    ))
}

/// Waits for the start lock. Closing the file releases it.
async fn lock(socket: &LocalSocket, deadline: Instant) -> Result<File, CommandFailure> {
    let path = socket.sibling("lock");
    let failed = |error: io::Error| {
        let what = format!("cannot lock `{}`: {error}", path.display());
        CommandFailure::new(FailureKind::Unreachable, what)
    };
    let file = open(&path).map_err(failed)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::Error(error)) => return Err(failed(error)),
            Err(std::fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                sleep(POLL_INTERVAL).await
            }
            Err(std::fs::TryLockError::WouldBlock) => {
                let busy = "another process is still starting the server of this machine";
                return Err(failed(io::Error::other(busy)));
            }
        }
    }
}

/// Returns whether a server holds the socket's lock although it does not answer.
fn is_served(socket: &LocalSocket) -> bool {
    let lock = File::open(lock_path(socket.path()));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(std::fs::TryLockError::WouldBlock)))
}

/// Opens a file of ours for writing without following symbolic links.
fn open(path: &Path) -> io::Result<File> {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(no_follow)
        .open(path)
}

/// Starts the server and waits until it listens. The server outlives this process.
async fn start(socket: &LocalSocket, deadline: Instant) -> Result<(), CommandFailure> {
    let log = socket.sibling("log");
    let failed = |why: String| {
        let what = format!("cannot start the server of this machine: {why}");
        CommandFailure::new(FailureKind::Unreachable, what).next(format!("see {}", log.display()))
    };
    let error_log = open(&log).and_then(|file| file.set_len(0).map(|()| file));
    let error_log = error_log.map_err(|error| failed(error.to_string()))?;
    // Inherited descriptors, such as locks and pipes, must not leak into the long-running server.
    exec_spawn::set_descriptors_close_on_exec();
    let mut listen = std::ffi::OsString::from("unix://");
    listen.push(socket.path());
    let mut child = Command::new(THIS_PROGRAM)
        .arg0(crate::PROGRAM_NAME)
        .arg("--background")
        .arg("--listen")
        .arg(listen)
        .env_remove(TOKEN)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(error_log)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut line = String::new();
    let read = match child.stdout.take() {
        Some(stdout) => timeout_at(deadline, BufReader::new(stdout).read_line(&mut line)).await,
        None => Ok(Ok(0)),
    };
    match read {
        Ok(Ok(bytes)) if bytes > 0 => Ok(()),
        Ok(_) => Err(failed(last_log_line(&log))),
        Err(_) => {
            drop(child.kill().await);
            Err(failed(format!("it is not listening after {TIMEOUT:?}")))
        }
    }
}

/// Returns the last line of a log.
fn last_log_line(log: &Path) -> String {
    let text = settings_source::read_text(log).unwrap_or_default();
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    let line = line.unwrap_or("it exited without an error message");
    line.strip_prefix("Error: ").unwrap_or(line).to_owned()
}

/// Executable of this process, even after its file was replaced or removed.
const THIS_PROGRAM: &str = "/proc/self/exe";
