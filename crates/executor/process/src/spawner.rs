//! The async handle of the spawner: starts it, and sends it commands.
//!
//! Commands without a sandbox can stop or kill the spawner. A stopped spawner is continued; one
//! that keeps being stopped is killed and replaced. If this process is a subreaper
//! ([`exec_spawn::spawner::adopt_orphans`]), orphans of a dead spawner become its children and are
//! killed.
//!
//! A *durable* spawner is a child of the keeper. Its commands outlive this process if the keeper
//! holds their control sockets; the next server adopts them.
//!
//! Elsewhere: the spawner process itself, the supervisors and their messages, and the keeper
//! (`exec-spawn`).

mod spawner_link;
mod supervised_child;
#[cfg(test)]
mod tests;

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use exec_spawn::{
    keeper::KeeperHandle,
    network_namespace::SOCKET_FAILURE_BYTES,
    sandbox_setup::{MountStep, NameGuard, SetupStep},
    spawner::{MAX_EXTRA, MAX_FRAME_BYTES, SpawnerProcess},
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Mutex,
};

use self::spawner_link::{SpawnerLink, await_spawner};
use crate::stdio::register;

pub use self::supervised_child::SupervisedChild;
pub use exec_spawn::network_namespace::{
    NetworkNamespaceHandle, SocketRequest, SocketRequestError,
};
pub use exec_spawn::process_tree::TreeMember;
pub use exec_spawn::spawner::{
    CommandSpec, CommandStdio, ExitReport, InheritedFd, ResourceLimit, SpawnError, SpawnStage,
    SupervisorReport,
};

/// The executable of this process, even if its file was replaced or removed.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Starts commands through a spawner process. The spawner is started with the first command, and
/// again after it dies.
#[derive(Clone, Debug)]
pub struct Spawner {
    program: Arc<Path>,
    /// Starts durable spawners. `None`: the spawner is a child of this process.
    keeper: Option<Arc<dyn KeeperHandle>>,
    link: Arc<Mutex<Option<SpawnerLink>>>,
}

impl Default for Spawner {
    /// Uses this program as its own spawner.
    fn default() -> Self {
        Self::with_program(Path::new(THIS_PROGRAM))
    }
}

impl Spawner {
    /// Uses `program` as the spawner. It must link this version of the crate.
    pub fn with_program(program: &Path) -> Self {
        Self {
            program: program.into(),
            keeper: None,
            link: Arc::default(),
        }
    }

    /// Uses this program as a durable spawner that the keeper starts.
    pub fn durable(keeper: Arc<dyn KeeperHandle>) -> Self {
        Self::durable_with_program(Path::new(THIS_PROGRAM), keeper)
    }

    /// Uses `program` as a durable spawner that the keeper starts. It must link this version of the
    /// crate.
    pub fn durable_with_program(program: &Path, keeper: Arc<dyn KeeperHandle>) -> Self {
        Self {
            keeper: Some(keeper),
            ..Self::with_program(program)
        }
    }

    /// Returns whether commands can outlive this process.
    pub fn is_durable(&self) -> bool {
        self.keeper.is_some()
    }

    /// Starts the spawner process ahead of the first command.
    pub async fn warm_up(&self) -> Result<(), SpawnError> {
        let mut link = self.link.lock().await;
        if link.is_none() {
            *link = Some(self.open_link().await?);
        }
        Ok(())
    }

    /// Starts a command. If the future is dropped, the command is killed.
    ///
    /// The start report of a durable command was peeked, and is to be consumed.
    pub async fn spawn(
        &self,
        command: CommandSpec,
        stdio: CommandStdio,
    ) -> Result<SupervisedChild, SpawnError> {
        let frame = CommandFrame::new(command, stdio)?;
        let (control, theirs) = control_sockets()?;
        let process = self.send(&frame.text, &frame.descriptors(&theirs)).await?;
        drop(theirs);
        let names = frame.into_names();
        let child = SupervisedChild::starting(control, process, self.clone());
        child.started(names).await
    }

    /// As [`Self::spawn`], but passes duplicates of the control socket and of the spawner's pidfd
    /// to `before_send` before the spawner learns of the command. A durable command outlives this
    /// process from the moment it exists, if `before_send` hands both to the keeper.
    ///
    /// The command is not started if `before_send` fails. After any error the caller drops the
    /// keeper's record.
    pub async fn spawn_with_control<F, Handover>(
        &self,
        command: CommandSpec,
        stdio: CommandStdio,
        before_send: F,
    ) -> Result<SupervisedChild, SpawnError>
    where
        F: FnOnce(OwnedFd, OwnedFd) -> Handover,
        Handover: Future<Output = Result<(), SpawnError>>,
    {
        let host = |error| SpawnError::host(SpawnStage::Setup, error);
        let frame = CommandFrame::new(command, stdio)?;
        let (control, theirs) = control_sockets()?;
        let mut link = self.link.lock().await;
        // The command is handed over together with its spawner, so it is not sent to another one.
        if link.as_ref().is_none_or(|open| open.process().has_exited()) {
            *link = Some(self.open_link().await?);
        }
        let Some(open) = link.as_mut() else {
            return Err(SpawnError::Lost);
        };
        let process = Arc::clone(open.process());
        let control_duplicate = control.get_ref().try_clone().map_err(host)?;
        let spawner_duplicate = process.descriptor().map_err(host)?;
        // Created before the frame is sent: dropping it kills what the keeper would keep alive.
        let child = SupervisedChild::starting(control, process, self.clone());
        before_send(control_duplicate, spawner_duplicate).await?;
        if let Err(error) = open.send(&frame.text, &frame.descriptors(&theirs)).await {
            // A durable spawner that closed its socket may live on with its supervisors.
            *link = None;
            return Err(host(error));
        }
        drop(link);
        drop(theirs);
        child.started(frame.into_names()).await
    }

    /// Creates a TCP socket in the network namespace of another process.
    ///
    /// # Errors
    /// Fails if the namespace cannot be entered, or the spawner is killed meanwhile.
    pub async fn open_socket(
        &self,
        namespace: &NetworkNamespaceHandle,
        family: AddressFamily,
    ) -> Result<OwnedFd, SocketRequestError> {
        let request = SocketRequest { namespace, family };
        let failed = |error: SpawnError| SocketRequestError::Spawner(io::Error::other(error));
        let (reply, theirs) = control_sockets().map_err(failed)?;
        let frame = request.encode();
        let sent = self
            .send(&frame, &request.descriptors(theirs.as_fd()))
            .await;
        let process = sent.map_err(failed)?;
        // The reply ends when the helper has closed the other end, too.
        drop(theirs);
        let received = reply.async_io(Interest::READABLE, receive_socket);
        match await_spawner(&process, received).await {
            Some(received) => received.map_err(SocketRequestError::Spawner)?,
            None => Err(failed(SpawnError::Lost)),
        }
    }

    /// Sends a frame to the spawner, and returns the spawner process that received it.
    async fn send(
        &self,
        text: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Arc<SpawnerProcess>, SpawnError> {
        let mut link = self.link.lock().await;
        if let Some(open) = link.as_mut()
            && open.send(text, descriptors).await.is_ok()
        {
            return Ok(Arc::clone(open.process()));
        }
        // No spawner is running, or it died and its commands are lost: start a new one.
        let mut fresh = self.open_link().await?;
        let sent = fresh.send(text, descriptors).await;
        let process = Arc::clone(fresh.process());
        *link = Some(fresh);
        sent.map_err(|error| SpawnError::host(SpawnStage::Setup, error))?;
        Ok(process)
    }

    async fn open_link(&self) -> Result<SpawnerLink, SpawnError> {
        match &self.keeper {
            Some(keeper) => {
                SpawnerLink::open_durable(Arc::clone(&self.program), Arc::clone(keeper)).await
            }
            None => SpawnerLink::open(&self.program)
                .map_err(|error| SpawnError::host(SpawnStage::Setup, error)),
        }
    }
}

/// Creates the control socket of a supervisor. Returns this process's end, then the other.
fn control_sockets() -> Result<(AsyncFd<OwnedFd>, OwnedFd), SpawnError> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|errno| SpawnError::host(SpawnStage::Setup, errno.into()))?;
    let control = register(ours, Interest::READABLE)
        .map_err(|error| SpawnError::host(SpawnStage::Setup, error))?;
    Ok((control, theirs))
}

/// Receives the reply to a request for a socket.
fn receive_socket(reply: &OwnedFd) -> io::Result<Result<OwnedFd, SocketRequestError>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut failure = [0; SOCKET_FAILURE_BYTES];
    let mut slices = [IoSliceMut::new(&mut failure)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(reply, &mut slices, &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(socket) = descriptors.next()
        {
            return Ok(Ok(socket));
        }
    }
    match message.bytes {
        SOCKET_FAILURE_BYTES => Ok(Err(SocketRequestError::decode(failure))),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A command that was checked and encoded, with the descriptors that are sent with it.
struct CommandFrame {
    command: CommandSpec,
    stdio: CommandStdio,
    text: Vec<u8>,
}

impl CommandFrame {
    fn new(command: CommandSpec, stdio: CommandStdio) -> Result<Self, SpawnError> {
        if let Some(setup) = &command.sandbox_setup
            && setup.namespaces.is_none()
            && !setup.guards.is_empty()
        {
            return Err(SpawnError::SandboxSetup {
                part: SetupStep::Guard(setup.guards.first().cloned()),
                source: io::Error::from_raw_os_error(libc::EINVAL),
            });
        }
        let text = command.encode(&stdio)?;
        if text.len() > MAX_FRAME_BYTES || command.inherited_fds.len() > MAX_EXTRA {
            let error = io::Error::from_raw_os_error(libc::E2BIG);
            return Err(SpawnError::host(SpawnStage::Exec, error));
        }
        Ok(Self {
            command,
            stdio,
            text,
        })
    }

    fn descriptors<'a>(&'a self, control: &'a OwnedFd) -> Vec<BorrowedFd<'a>> {
        self.command.descriptors(control.as_fd(), &self.stdio)
    }

    /// Closes the descriptors, and returns the names that errors of the sandbox set-up mention.
    fn into_names(mut self) -> (Vec<MountStep>, Vec<NameGuard>) {
        let setup = self.command.sandbox_setup.as_mut();
        setup.map(SetupStep::take_names).unwrap_or_default()
    }
}
