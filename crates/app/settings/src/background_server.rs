//! The background server of this account: connects to it, and starts it if none is running.
//!
//! Invariant: nothing is sent before the peer's credentials were checked: it has to run under this
//! account and outside of stricter sandboxes. Elsewhere: the socket's path ([`LocalSocket`]).

mod outdated_server;

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use exec_client::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    connect::RemoteConnector,
    error::{ConnectError, ExecServerError},
};
use exec_env::credential::CredentialVariable;
use exec_transport::{
    connect::{ListenerTrust, ServerAddress, WebSocketConnector},
    listen_url::lock_path,
};
use futures_util::future::{BoxFuture, FutureExt, TryFutureExt};
use rustix::fs::OFlags;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::UnixStream,
    process::Command,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    local_socket::{LocalSocket, LocalSocketError},
    settings_source,
};

pub use self::outdated_server::OutdatedServer;

/// Limit until the server answers, including all retries.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of server starts.
const MAX_STARTS: u32 = 3;
/// How long a server may take to bind its socket again after the file was removed.
const REBIND_TIMEOUT: Duration = Duration::from_secs(4);
/// Poll interval while another process holds the lock or the socket.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Why the background server cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackgroundServerError {
    /// Host: the directory of the socket is unsafe or cannot be created.
    #[error("{error}: {}", .error.source)]
    Directory {
        /// Names the directory and the problem.
        error: LocalSocketError,
    },
    /// Host: the start lock is not available.
    #[error("cannot lock `{}`: {error}", path.display())]
    Lock {
        /// The lock.
        path: PathBuf,
        /// Cause.
        error: io::Error,
    },
    /// Host: the server did not start.
    #[error("cannot start the server of this machine: {reason}")]
    Start {
        /// The server's error output, or the reason why it could not be started.
        reason: String,
        /// Its log.
        log: PathBuf,
    },
    /// Peer: the server does not answer, or the process on its socket is not trusted.
    #[error("cannot reach the server of this machine: {error}")]
    Unreachable {
        /// Its socket.
        socket: LocalSocket,
        /// Cause.
        error: ExecServerError,
    },
}

impl BackgroundServerError {
    /// Describes a failed connection.
    pub fn unreachable(socket: &LocalSocket, error: ExecServerError) -> Self {
        let socket = socket.clone();
        Self::Unreachable { socket, error }
    }

    /// Returns what the user can do.
    pub fn next_step(&self) -> String {
        match self {
            Self::Directory { .. } => {
                "make it a directory of your own with mode 0700, or set EXEC_SERVER_SOCKET"
                    .to_owned()
            }
            Self::Lock { .. } => "try again, or check who holds it".to_owned(),
            Self::Start { log, .. } => format!("see {}", log.display()),
            Self::Unreachable { socket, error } => {
                let path = socket.path().display();
                let ExecServerError::Connect(error) = error else {
                    return see_log(socket);
                };
                if let ConnectError::Address(_) = error {
                    "run the command outside the sandbox: commands for this machine do not work \
                     inside"
                        .to_owned()
                } else if let ConnectError::Rejected(_) = error {
                    format!(
                        "stop the process that listens there, or name it with -E unix://{path} if \
                         you trust it"
                    )
                } else {
                    see_log(socket)
                }
            }
        }
    }
}

fn see_log(socket: &LocalSocket) -> String {
    let (log, path) = (socket.sibling("log"), socket.path());
    format!(
        "see {}, and check which process listens on {}",
        log.display(),
        path.display()
    )
}

/// Connects a client to the server, and starts the server if none is running.
pub async fn connect(
    socket: &LocalSocket,
    client: &str,
) -> Result<ExecServerClient, BackgroundServerError> {
    let connect = || {
        let connector = RemoteConnector::own_unix(socket.path());
        ExecServerClient::connect_with(Arc::new(connector), options(client)).boxed()
    };
    join_or_start(socket, &connect).await
}

/// Opens a connection to the server without a handshake, and starts the server if none is running.
pub async fn open_stream(socket: &LocalSocket) -> Result<UnixStream, BackgroundServerError> {
    let connector = WebSocketConnector {
        listener: ListenerTrust::OwnAccount,
        ..WebSocketConnector::new(ServerAddress::Unix(socket.path().to_owned()))
    };
    let open = || {
        let opened = connector.open_unix_stream(socket.path());
        opened
            .map_err(|error| ConnectError::from(error).into())
            .boxed()
    };
    join_or_start(socket, &open).await
}

/// Returns the options of a client with this name.
pub fn options(client: &str) -> ExecServerClientConnectOptions {
    ExecServerClientConnectOptions {
        client_name: client.to_owned(),
        ..ExecServerClientConnectOptions::default()
    }
}

async fn join_or_start<'a, T>(
    socket: &LocalSocket,
    try_connect: &(dyn Fn() -> BoxFuture<'a, Result<T, ExecServerError>> + Sync),
) -> Result<T, BackgroundServerError> {
    let unreachable = |error| BackgroundServerError::unreachable(socket, error);
    let secured = socket.secure();
    secured.map_err(|error| BackgroundServerError::Directory { error })?;
    match try_connect().await {
        Err(error) if is_absent(&error) => {}
        outcome => return outcome.map_err(unreachable),
    }
    let deadline = Instant::now() + TIMEOUT;
    let _lock = lock(socket, deadline).await?;
    let rebind_deadline = Instant::now() + REBIND_TIMEOUT;
    let mut starts = 0;
    loop {
        // Another process may have started it while it held the lock.
        let error = match try_connect().await {
            Err(error) if is_absent(&error) => error,
            outcome => return outcome.map_err(unreachable),
        };
        if starts == MAX_STARTS || Instant::now() >= deadline {
            return Err(unreachable(error));
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

/// Returns whether no server is listening, or one is just exiting.
fn is_absent(error: &ExecServerError) -> bool {
    matches!(
        error,
        ExecServerError::Connect(
            ConnectError::Link(_) | ConnectError::Busy(_) | ConnectError::Broken(_)
        )
    )
}

/// Waits for the start lock. Closing the file releases it.
async fn lock(socket: &LocalSocket, deadline: Instant) -> Result<File, BackgroundServerError> {
    let path = socket.sibling("lock");
    let failed = |error: io::Error| {
        let path = path.clone();
        BackgroundServerError::Lock { path, error }
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
async fn start(socket: &LocalSocket, deadline: Instant) -> Result<(), BackgroundServerError> {
    let log = socket.sibling("log");
    let failed = |reason: String| {
        let log = log.clone();
        BackgroundServerError::Start { reason, log }
    };
    let error_log = open(&log).and_then(|file| file.set_len(0).map(|()| file));
    let error_log = error_log.map_err(|error| failed(error.to_string()))?;
    // Inherited descriptors, such as locks and pipes, must not leak into the long-running server.
    exec_spawn::set_descriptors_close_on_exec();
    let mut listen = std::ffi::OsString::from("unix://");
    listen.push(socket.path());
    let mut child = Command::new(THIS_PROGRAM)
        .arg0(PROGRAM_NAME)
        .arg("--background")
        .arg("--listen")
        .arg(listen)
        .env_remove(CredentialVariable::ServerToken.name())
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
/// Name that `ps` shows.
const PROGRAM_NAME: &str = "exec-server";
