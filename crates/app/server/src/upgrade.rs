//! Replaces a running server with another program: the new server takes over the listener, the state
//! directory, the sessions and the durable processes.
//!
//! The old server starts the new one, which reads its configuration and reports that it is ready. The
//! old one then stops accepting, ends its connections, leaves its durable processes to the keeper,
//! and passes the descriptors of listener and locks. Connections meanwhile wait in the backlog of the
//! listener. If the new server fails before it serves, the old one adopts everything again.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use exec_service::ServerControl;
use exec_transport::listen_url::ListenUrl;
use exec_wire::{
    error::RpcError,
    process::ProcessSummary,
    server::{ServerStatus, UpgradeServer, UpgradeStarted},
};
use futures_util::future::{BoxFuture, FutureExt};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

/// Flag of a server that takes over from the one that started it. Its stdin is their socket.
pub(crate) const TAKEOVER_FLAG: &str = "--takeover";
/// How long a new server may take to read its configuration.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a new server may take to adopt everything.
const SERVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a new server that has closed its socket may take to exit, and how often to look.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
const EXIT_INTERVAL: Duration = Duration::from_millis(10);
/// Version of the messages below. A server refuses another one.
const HANDOVER_VERSION: u32 = 1;
/// Most descriptors of a handover: two locks and a listener.
const MAX_DESCRIPTORS: usize = 4;
/// Maximum message.
const MAX_MESSAGE: usize = 4096;

/// What an old server hands over.
#[derive(Debug)]
pub(crate) struct Handover {
    /// Address of the listener, with the actual port.
    pub(crate) address: ListenUrl,
    /// Lock of the state directory.
    pub(crate) state_lock: OwnedFd,
    /// Descriptors of the listener.
    pub(crate) listener: Vec<OwnedFd>,
}

/// A new server that is ready to take over.
#[derive(Debug)]
pub(crate) struct Successor {
    child: NewServer,
    socket: HandoverSocket,
}

/// The process of a new server. Dropping it kills it, unless it serves.
#[derive(Debug)]
struct NewServer {
    child: Child,
    is_ended: bool,
}

/// Control of this server by its clients.
#[derive(Debug)]
pub(crate) struct UpgradeControl {
    successors: mpsc::Sender<Successor>,
    /// Why this server cannot be replaced, if so.
    obstacle: Option<&'static str>,
    upgrade_error: Arc<Mutex<Option<String>>>,
}

impl UpgradeControl {
    /// Creates the control. Successors are sent to `successors`.
    pub(crate) fn new(
        successors: mpsc::Sender<Successor>,
        obstacle: Option<&'static str>,
        upgrade_error: Arc<Mutex<Option<String>>>,
    ) -> Self {
        Self {
            successors,
            obstacle,
            upgrade_error,
        }
    }
}

impl ServerControl for UpgradeControl {
    fn status(&self) -> ServerStatus {
        let error = self.upgrade_error.lock();
        ServerStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            os_pid: std::process::id(),
            upgrade_error: error.unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    fn upgrade(
        &self,
        upgrade: UpgradeServer,
        ordinary: &[ProcessSummary],
    ) -> BoxFuture<'static, Result<UpgradeStarted, RpcError>> {
        let checked = match self.obstacle {
            Some(obstacle) => Err(RpcError::invalid_request(obstacle)),
            None if upgrade.force => Ok(()),
            None => check_processes(ordinary),
        };
        let successors = self.successors.clone();
        let upgrade_error = Arc::clone(&self.upgrade_error);
        async move {
            checked?;
            let Ok(slot) = successors.try_reserve() else {
                return Err(RpcError::invalid_request("another upgrade is in progress"));
            };
            let failed = |error: anyhow::Error| RpcError::invalid_request(format!("{error:#}"));
            let program = match &upgrade.program {
                Some(program) => PathBuf::from(program),
                None => own_program().map_err(failed)?,
            };
            let (successor, started) = Successor::start(&program).await.map_err(failed)?;
            // An earlier failure says nothing about this upgrade.
            *upgrade_error.lock().unwrap_or_else(PoisonError::into_inner) = None;
            slot.send(successor);
            Ok(started)
        }
        .boxed()
    }
}

/// Refuses to end processes that would not survive.
fn check_processes(ordinary: &[ProcessSummary]) -> Result<(), RpcError> {
    if ordinary.is_empty() {
        return Ok(());
    }
    let names = ordinary
        .iter()
        .take(5)
        .map(|process| process.process_id.as_str());
    let names: Vec<_> = names.collect();
    Err(RpcError::invalid_request(format!(
        "{} processes are not durable and would end, such as {}: wait for them, or use --force; a \
         server with `--durable all` makes every process durable",
        ordinary.len(),
        names.join(", ")
    )))
}

/// Returns the file that this program was started from. It may have been replaced meanwhile.
fn own_program() -> anyhow::Result<PathBuf> {
    let link = std::fs::read_link("/proc/self/exe").context("cannot find the own program")?;
    let Some(path) = link
        .to_str()
        .and_then(|link| link.strip_suffix(" (deleted)"))
    else {
        return Ok(link);
    };
    // The name of a file may end like that, too.
    let path = PathBuf::from(path);
    Ok(if link.exists() { link } else { path })
}

impl Successor {
    /// Starts a program with the arguments of this server, and waits until it is ready.
    async fn start(program: &Path) -> anyhow::Result<(Self, UpgradeStarted)> {
        anyhow::ensure!(
            program.is_absolute(),
            "the program must be an absolute path"
        );
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
        if !arguments.iter().any(|argument| argument == TAKEOVER_FLAG) {
            arguments.push(TAKEOVER_FLAG.into());
        }
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::from(theirs))
            .spawn();
        let child = child.with_context(|| format!("cannot start `{}`", program.display()))?;
        let mut child = NewServer {
            child,
            is_ended: false,
        };
        let socket = HandoverSocket::new(ours)?;
        let failure = match timeout(READY_TIMEOUT, socket.receive()).await {
            Ok(Ok((message, _))) => match parse_ready(&message) {
                Ok(version) => {
                    let os_pid = child.child.id();
                    let started = UpgradeStarted { version, os_pid };
                    return Ok((Self { child, socket }, started));
                }
                Err(error) => format!("{error:#}"),
            },
            Ok(Err(_)) => format!("it ended ({})", child.end().await),
            Err(_) => format!("it did not become ready in {READY_TIMEOUT:?}"),
        };
        child.end().await;
        anyhow::bail!("cannot upgrade to `{}`: {failure}", program.display())
    }

    /// Hands everything over and waits until the new server serves. It is ended if it does not.
    pub(crate) async fn take_over(mut self, handover: Handover) -> Result<u32, anyhow::Error> {
        let message = format!("{HANDOVER_VERSION} {}", handover.address);
        let mut descriptors = vec![handover.state_lock.as_fd()];
        descriptors.extend(handover.listener.iter().map(AsFd::as_fd));
        let handed = async {
            self.socket.send(message.as_bytes(), &descriptors).await?;
            self.socket.receive().await
        };
        let failure = match timeout(SERVE_TIMEOUT, handed).await {
            Ok(Ok((message, _))) if message == SERVING => {
                self.child.is_ended = true;
                return Ok(self.child.child.id());
            }
            Ok(Ok((message, _))) => match parse_failure(&message) {
                Some(failure) => failure,
                None => "it sent an invalid message".to_owned(),
            },
            Ok(Err(_)) => format!("it ended ({})", self.child.end().await),
            Err(_) => format!("it did not serve in {SERVE_TIMEOUT:?}"),
        };
        self.child.end().await;
        anyhow::bail!("the new server failed: {failure}")
    }
}

impl NewServer {
    /// Ends the process. Returns its status as text.
    async fn end(&mut self) -> String {
        // It may be about to exit with a status that says more than SIGKILL does.
        let deadline = Instant::now() + EXIT_TIMEOUT;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Ok(status),
                Ok(None) if Instant::now() < deadline => sleep(EXIT_INTERVAL).await,
                Ok(None) => break self.child.kill().and_then(|()| self.child.wait()),
                Err(error) => break Err(error),
            }
        };
        self.is_ended = true;
        match status {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for NewServer {
    fn drop(&mut self) {
        if !self.is_ended
            && let Err(error) = self.child.kill().and_then(|()| self.child.wait())
        {
            tracing::warn!(%error, "failed to end a new server");
        }
    }
}

/// Message of a new server that serves.
const SERVING: &[u8] = b"serving";

/// Start of the message of a new server that cannot take over.
const FAILED: &str = "failed ";

/// Returns why a new server cannot take over, if it says so.
fn parse_failure(message: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(message);
    Some(text.strip_prefix(FAILED)?.replace('\n', " "))
}

/// Returns the version of a new server that reports to be ready.
fn parse_ready(message: &[u8]) -> anyhow::Result<String> {
    if let Some(failure) = parse_failure(message) {
        anyhow::bail!(failure);
    }
    let text = String::from_utf8_lossy(message);
    let mut words = text.split(' ');
    let (Some("ready"), Some(protocol), Some(version)) = (words.next(), words.next(), words.next())
    else {
        anyhow::bail!("the new program is not an exec-server that can take over");
    };
    anyhow::ensure!(
        protocol == HANDOVER_VERSION.to_string(),
        "the new program takes over with protocol {protocol}, this one with {HANDOVER_VERSION}"
    );
    Ok(version.to_owned())
}

/// The end of a new server: takes over from the server at the other end of its stdin.
#[derive(Debug)]
pub(crate) struct Takeover {
    socket: HandoverSocket,
}

impl Takeover {
    /// Opens the socket to the old server.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let stdin = rustix::stdio::stdin().try_clone_to_owned()?;
        let socket = HandoverSocket::new(stdin).context("--takeover needs a socket as stdin")?;
        Ok(Self { socket })
    }

    /// Reports that this server is ready, and receives what the old one hands over.
    pub(crate) async fn receive(&self) -> anyhow::Result<Handover> {
        let ready = format!("ready {HANDOVER_VERSION} {}", env!("CARGO_PKG_VERSION"));
        self.socket.send(ready.as_bytes(), &[]).await?;
        let received = self.socket.receive().await;
        let (message, descriptors) = received.context("the old server has given up")?;
        let text = String::from_utf8_lossy(&message);
        let address = text
            .strip_prefix(&format!("{HANDOVER_VERSION} "))
            .context("the old server speaks another protocol")?;
        let mut descriptors = descriptors.into_iter();
        let state_lock = descriptors.next().context("no lock was handed over")?;
        Ok(Handover {
            address: address.parse()?,
            state_lock,
            listener: descriptors.collect(),
        })
    }

    /// Reports that this server serves. If the old one has died meanwhile, this one serves alone.
    pub(crate) async fn finish(self) {
        if let Err(error) = self.socket.send(SERVING, &[]).await {
            tracing::warn!(%error, "the old server is gone");
        }
    }

    /// Reports why this server cannot take over.
    pub(crate) async fn fail(self, error: &anyhow::Error) {
        let mut message = format!("{FAILED}{error:#}");
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        if let Err(error) = self.socket.send(message.as_bytes(), &[]).await {
            tracing::debug!(%error, "failed to report to the old server");
        }
    }
}

/// Socket between an old and a new server. It keeps message boundaries.
#[derive(Debug)]
struct HandoverSocket(AsyncFd<OwnedFd>);

impl HandoverSocket {
    fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        Ok(Self(exec_process::register(socket, interest)?))
    }

    async fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let sent = self.0.async_io(Interest::WRITABLE, |socket| {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            let slices = [IoSlice::new(message)];
            Ok(sendmsg(
                socket,
                &slices,
                &mut ancillary,
                SendFlags::NOSIGNAL,
            )?)
        });
        sent.await.map(drop)
    }

    async fn receive(&self) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let received = self.0.async_io(Interest::READABLE, |socket| {
            let mut message = [0; MAX_MESSAGE];
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [IoSliceMut::new(&mut message)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let length = recvmsg(socket, &mut slices, &mut ancillary, flags)?.bytes;
            let mut descriptors = Vec::new();
            for received in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = received {
                    descriptors.extend(rights);
                }
            }
            Ok((message[..length].to_vec(), descriptors))
        });
        let (message, descriptors) = received.await?;
        match message.is_empty() {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Ok((message, descriptors)),
        }
    }
}
