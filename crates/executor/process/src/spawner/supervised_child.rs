//! A running command: reports of its supervisor, orders to it, and killing its tree.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use exec_spawn::{
    process_tree::{self as tree, TreeMember},
    sandbox_setup::{MountStep, NameGuard, SetupStep, StepCode},
    spawner::{REPORT_BYTES, SpawnerProcess, SupervisorOrder, is_subreaper},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
    process::Signal,
};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    SpawnError, SpawnStage, Spawner, SupervisorReport,
    spawner_link::{await_spawner, watch_spawner},
};
use crate::stdio::register;

/// A running command. Dropping it kills the command and all of its descendants, unless it is
/// durable and was released.
///
/// The reports of a durable child are peeked and then consumed, so that a server that is killed in
/// between leaves them to the next one.
#[derive(Debug)]
pub struct SupervisedChild {
    control: AsyncFd<OwnedFd>,
    pid: u32,
    supervisor: i32,
    /// Whether the tree was ordered to be killed.
    kill_ordered: AtomicBool,
    /// Whether a durable tree goes on when the child is dropped: the keeper holds a duplicate of the
    /// control socket. `None`: the supervisor kills the tree when the server's end closes.
    released: Option<AtomicBool>,
    process: Arc<SpawnerProcess>,
    /// Keeps the spawner alive: supervisors exit with it. `None` for an adopted child: its spawner
    /// exits after its last supervisor.
    _spawner: Option<Spawner>,
}

impl SupervisedChild {
    /// Creates the handle of a child that is being started.
    pub(super) fn starting(
        control: AsyncFd<OwnedFd>,
        process: Arc<SpawnerProcess>,
        spawner: Spawner,
    ) -> Self {
        Self {
            control,
            pid: 0,
            supervisor: 0,
            kill_ordered: AtomicBool::new(false),
            released: spawner.is_durable().then(AtomicBool::default),
            process,
            _spawner: Some(spawner),
        }
    }

    /// Takes over a durable child from the descriptors that the keeper held, and the pids of its
    /// [`SupervisorReport::Started`]. Reports that were not consumed are still to come, possibly
    /// including that one.
    ///
    /// # Errors
    /// Fails if `control` is not a socket, `spawner_pidfd` is not a pidfd, or outside of a tokio
    /// runtime.
    pub fn adopt(
        control: OwnedFd,
        pid: u32,
        supervisor: i32,
        spawner_pidfd: OwnedFd,
    ) -> io::Result<Self> {
        let process = Arc::new(SpawnerProcess::from_pidfd(spawner_pidfd)?);
        if is_subreaper() {
            // If the keeper dies, orphans of this spawner become children of this process.
            watch_spawner(&process)?;
        }
        Ok(Self {
            control: register(control, Interest::READABLE)?,
            pid,
            supervisor,
            kill_ordered: AtomicBool::new(false),
            released: Some(AtomicBool::default()),
            process,
            _spawner: None,
        })
    }

    /// Takes over a durable child with an unrecorded start, because the server was killed
    /// meanwhile. Waits for the start; its report is not consumed. If the future is dropped, the
    /// child goes on.
    ///
    /// # Errors
    /// Fails if the command has not been started. Nothing is left running then.
    pub async fn adopt_starting(
        control: OwnedFd,
        spawner_pidfd: OwnedFd,
    ) -> Result<Self, SpawnError> {
        let host = |error| SpawnError::host(SpawnStage::Setup, error);
        let child = Self::adopt(control, 0, 0, spawner_pidfd).map_err(host)?;
        child.release();
        let mut child = child.started((Vec::new(), Vec::new())).await?;
        child.released = Some(AtomicBool::default());
        Ok(child)
    }

    /// Waits for the command to start. The steps and guards are those of its sandbox set-up.
    pub(super) async fn started(
        mut self,
        (steps, guards): (Vec<MountStep>, Vec<NameGuard>),
    ) -> Result<Self, SpawnError> {
        let report = match self.released {
            None => await_spawner(&self.process, self.report()).await,
            Some(_) => await_spawner(&self.process, self.peek_report()).await,
        };
        match report.flatten() {
            Some(SupervisorReport::Started { pid, supervisor }) => {
                self.pid = pid;
                self.supervisor = supervisor.cast_signed();
                Ok(self)
            }
            Some(SupervisorReport::Failed { stage, errno, part }) => {
                let source = io::Error::from_raw_os_error(errno);
                let stage = SpawnStage::from_number(stage);
                Err(if stage == SpawnStage::SandboxSetup {
                    let part =
                        SetupStep::new(StepCode::from_numbers(part.0, part.1), &steps, &guards);
                    SpawnError::SandboxSetup { part, source }
                } else {
                    SpawnError::host(stage, source)
                })
            }
            Some(SupervisorReport::Exited(_)) | None => Err(SpawnError::Lost),
        }
    }

    /// Returns the pid of the command.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the pid of the supervisor.
    pub fn supervisor(&self) -> i32 {
        self.supervisor
    }

    /// Opens an accepted process of the tree: the command, or else the first descendant that is
    /// alive. Reads `/proc`, so it blocks briefly.
    pub fn open_member(&self, accept: impl Fn(&TreeMember) -> bool) -> Option<TreeMember> {
        let root = self.supervisor;
        let open = |pid: i32| TreeMember::open(pid, root).filter(&accept);
        let descendants = || tree::descendants(root).into_iter().find_map(open);
        let member = open(self.pid.cast_signed()).or_else(descendants)?;
        // The supervisor's pid was its own all the time.
        self.is_supervised().then_some(member)
    }

    /// Returns the pids of the tree, parents first. Reads `/proc`, so it blocks briefly.
    pub fn pids(&self) -> Vec<i32> {
        let pids = tree::descendants(self.supervisor);
        // Otherwise its pid may name another process.
        let is_own = self.is_supervised();
        pids.into_iter().filter(|_| is_own).collect()
    }

    /// Returns this process's end of the control socket, for another keeper.
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.get_ref().as_fd()
    }

    /// Waits for the next report. `None`: the supervisor is gone, and the whole tree with it.
    /// Cancel safe.
    pub async fn report(&self) -> Option<SupervisorReport> {
        self.receive_report(RecvFlags::empty()).await
    }

    /// As [`Self::report`], but the same report is returned again until it is consumed.
    pub async fn peek_report(&self) -> Option<SupervisorReport> {
        self.receive_report(RecvFlags::PEEK).await
    }

    /// Consumes the report that [`Self::peek_report`] has returned. Call it after the report was
    /// recorded.
    pub fn consume_report(&self) {
        if let Err(error) = receive(self.control.get_ref(), RecvFlags::DONTWAIT) {
            tracing::debug!(%error, "failed to consume report of supervisor");
        }
    }

    async fn receive_report(&self, flags: RecvFlags) -> Option<SupervisorReport> {
        let received = self
            .control
            .async_io(Interest::READABLE, |control| receive(control, flags))
            .await;
        let bytes = received.ok().flatten()?;
        SupervisorReport::decode(&bytes)
    }

    /// Lets a durable tree go on when this handle is dropped. Other trees are killed regardless.
    pub fn release(&self) {
        if let Some(released) = &self.released {
            released.store(true, Relaxed);
        }
    }

    /// Signals the command's process group. Does nothing after the command has exited.
    pub fn signal(&self, signal: i32) {
        self.order(SupervisorOrder::Signal(signal));
    }

    /// Kills the command and all of its descendants through the supervisor. `force_kill` handles a
    /// supervisor that does not respond.
    pub fn kill_tree(&self) {
        self.kill_ordered.store(true, Relaxed);
        self.order(SupervisorOrder::Kill);
        self.process.resume();
        self.resume_supervisor();
    }

    /// Returns whether [`Self::kill_tree`] was called.
    pub(crate) fn is_kill_ordered(&self) -> bool {
        self.kill_ordered.load(Relaxed)
    }

    /// Kills all descendants of the supervisor without its help; the supervisor then reports the
    /// exit. If `last` is set and no descendant is left, kills the supervisor, too. Reads `/proc`,
    /// so it blocks briefly.
    pub(crate) fn force_kill(&self, last: bool) {
        if !self.is_supervised() {
            return;
        }
        self.process.resume();
        let alive = tree::kill_descendants(self.supervisor);
        if last && !alive && self.is_supervised() {
            tree::signal(self.supervisor, Signal::KILL);
        } else {
            self.resume_supervisor();
        }
    }

    /// Continues the supervisor, in case the command stopped it.
    fn resume_supervisor(&self) {
        if self.is_supervised() {
            tree::signal(self.supervisor, Signal::CONT);
        }
    }

    /// Returns whether the supervisor is alive, so that its pid is still its own. Its end of the
    /// socket may also be open in a spawner that was stopped while starting it; such a spawner has
    /// not reaped it either.
    fn is_supervised(&self) -> bool {
        // Unlike the end of the reports, this is seen before they are consumed.
        let mut fds = [PollFd::new(&self.control, PollFlags::empty())];
        self.supervisor > 0
            && matches!(
                poll(&mut fds, Some(&Timespec::default())),
                Ok(0) | Err(Errno::INTR)
            )
    }

    fn order(&self, order: SupervisorOrder) {
        // A supervisor that is gone has no process left to signal.
        if let Err(errno) = send(&self.control, &order.encode(), SendFlags::NOSIGNAL) {
            tracing::debug!(%errno, ?order, "failed to send order to supervisor");
        }
    }
}

impl Drop for SupervisedChild {
    fn drop(&mut self) {
        // The keeper holds a duplicate of the socket, so that closing it ends nothing.
        if let Some(released) = &self.released
            && !released.load(Relaxed)
        {
            self.kill_tree();
        }
    }
}

/// Receives the bytes of one report. `None`: the supervisor is gone.
fn receive(control: &OwnedFd, flags: RecvFlags) -> io::Result<Option<[u8; REPORT_BYTES]>> {
    let mut bytes = [0; REPORT_BYTES];
    let received = match recv(control, &mut bytes, flags) {
        // The supervisor exited with unread orders. The kernel reports this once, before the
        // messages that the supervisor had sent.
        Err(Errno::CONNRESET) => recv(control, &mut bytes, flags),
        received => received,
    };
    let (count, _) = received?;
    Ok((count == REPORT_BYTES).then_some(bytes))
}
