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
use exec_service::{ServerControl, Service};
use exec_transport::listen_url::ListenUrl;
use exec_wire::{
    error::RpcError,
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
    time::timeout,
};

/// Flag of a server that takes over from the one that started it. Its stdin is their socket.
pub(crate) const TAKEOVER_FLAG: &str = "--takeover";
/// How long a new server may take to read its configuration.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a new server may take to adopt everything.
const SERVE_TIMEOUT: Duration = Duration::from_secs(20);
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
    child: Child,
    socket: HandoverSocket,
}

/// Control of this server by its clients.
#[derive(Debug)]
pub(crate) struct UpgradeControl {
    service: Service,
    successors: mpsc::Sender<Successor>,
    /// Why this server cannot be replaced, if so.
    obstacle: Option<&'static str>,
    upgrade_error: Arc<Mutex<Option<String>>>,
}

impl UpgradeControl {
    /// Creates the control. Successors are sent to `successors`.
    pub(crate) fn new(
        service: Service,
        successors: mpsc::Sender<Successor>,
        obstacle: Option<&'static str>,
        upgrade_error: Arc<Mutex<Option<String>>>,
    ) -> Self {
        Self {
            service,
            successors,
            obstacle,
            upgrade_error,
        }
    }

    /// Refuses to end processes that would not survive.
    fn check_processes(&self, force: bool) -> Result<(), RpcError> {
        let ordinary = self.service.ordinary_processes();
        if force || ordinary.is_empty() {
            return Ok(());
        }
        let names = ordinary
            .iter()
            .take(5)
            .map(|process| process.process_id.as_str());
        let names: Vec<_> = names.collect();
        Err(RpcError::invalid_request(format!(
            "{} running processes are not durable and would end, such as {}: wait for them, or use \
             --force; `--durable all` makes every process durable",
            ordinary.len(),
            names.join(", ")
        )))
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
    ) -> BoxFuture<'static, Result<UpgradeStarted, RpcError>> {
        let checked = match self.obstacle {
            Some(obstacle) => Err(RpcError::invalid_request(obstacle)),
            None => self.check_processes(upgrade.force),
        };
        let successors = self.successors.clone();
        let service = self.service.clone();
        async move {
            checked?;
            let Ok(slot) = successors.try_reserve() else {
                return Err(RpcError::invalid_request("another upgrade is in progress"));
            };
            let refusal = OrdinaryRefusal::begin(&service);
            let failed = |error: anyhow::Error| RpcError::invalid_request(format!("{error:#}"));
            let program = match &upgrade.program {
                Some(program) => PathBuf::from(program),
                None => own_program().map_err(failed)?,
            };
            let (successor, started) = Successor::start(&program).await.map_err(failed)?;
            slot.send(successor);
            refusal.keep();
            Ok(started)
        }
        .boxed()
    }
}

/// Refuses starts of ordinary processes from the check to the handover. Dropping it admits them
/// again, unless it is kept.
struct OrdinaryRefusal<'a>(Option<&'a Service>);

impl<'a> OrdinaryRefusal<'a> {
    fn begin(service: &'a Service) -> Self {
        service.refuse_ordinary(true);
        Self(Some(service))
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for OrdinaryRefusal<'_> {
    fn drop(&mut self) {
        if let Some(service) = self.0 {
            service.refuse_ordinary(false);
        }
    }
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
    Ok(PathBuf::from(path))
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
        let mut successor = Self {
            child,
            socket: HandoverSocket::new(ours)?,
        };
        match timeout(READY_TIMEOUT, successor.socket.receive()).await {
            Ok(Ok((message, _))) => {
                let version = parse_ready(&message)?;
                let os_pid = successor.child.id();
                Ok((successor, UpgradeStarted { version, os_pid }))
            }
            Ok(Err(_)) => {
                let status = successor.end();
                anyhow::bail!(
                    "`{}` did not become ready ({status}); see its log",
                    program.display()
                )
            }
            Err(_) => {
                successor.end();
                anyhow::bail!(
                    "`{}` did not become ready in {READY_TIMEOUT:?}",
                    program.display()
                )
            }
        }
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
            Ok(Ok((message, _))) if message == SERVING => return Ok(self.child.id()),
            Ok(Ok((message, _))) => String::from_utf8_lossy(&message).into_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it did not serve in {SERVE_TIMEOUT:?}"),
        };
        let status = self.end();
        anyhow::bail!("the new server failed and was ended ({status}): {failure}")
    }

    /// Ends the new server. Returns its status as text.
    fn end(&mut self) -> String {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        match ended {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

/// Message of a new server that serves.
const SERVING: &[u8] = b"serving";

/// Returns the version of a new server that reports to be ready.
fn parse_ready(message: &[u8]) -> anyhow::Result<String> {
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
    /// Reports that this server is ready, and receives what the old one hands over.
    pub(crate) async fn begin() -> anyhow::Result<(Self, Handover)> {
        let stdin = rustix::stdio::stdin().try_clone_to_owned()?;
        let socket = HandoverSocket::new(stdin).context("--takeover needs a socket as stdin")?;
        let ready = format!("ready {HANDOVER_VERSION} {}", env!("CARGO_PKG_VERSION"));
        socket.send(ready.as_bytes(), &[]).await?;
        let (message, descriptors) = socket.receive().await?;
        let text = String::from_utf8_lossy(&message);
        let address = text
            .strip_prefix(&format!("{HANDOVER_VERSION} "))
            .context("the old server speaks another protocol")?;
        let mut descriptors = descriptors.into_iter();
        let state_lock = descriptors.next().context("no lock was handed over")?;
        let handover = Handover {
            address: address.parse()?,
            state_lock,
            listener: descriptors.collect(),
        };
        Ok((Self { socket }, handover))
    }

    /// Reports that this server serves.
    pub(crate) async fn finish(self) -> anyhow::Result<()> {
        self.socket
            .send(SERVING, &[])
            .await
            .context("the old server is gone")
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
