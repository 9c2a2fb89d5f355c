//! A child that leads a process group, and the end of that group.

use std::{io, process::ExitStatus, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};
use tokio::{net::unix::pipe, process::Child};

/// How long a group may take to end when there is no runtime to wait in, and its thread waits.
const LAST_GRACE: Duration = Duration::from_millis(200);
/// How long a group that was killed may take to be gone then.
const LAST_REAP: Duration = Duration::from_secs(1);

/// A process group, known by its leader. Dropping it ends all of it.
#[derive(Debug)]
pub(super) struct Group {
    child: Child,
    leader: Pid,
    /// Readable when the leader has exited. That does not reap it: its number stays its own.
    watch: pipe::Receiver,
    reaped: bool,
}

impl Group {
    /// Takes charge of a child that was started as the leader of a group.
    pub(super) fn new(mut child: Child) -> io::Result<Self> {
        let watched = leader(&child).and_then(|leader| {
            let descriptor = pidfd_open(leader, PidfdFlags::NONBLOCK)?;
            // Nothing is ever read: all that matters is when it becomes readable.
            let watch = pipe::Receiver::from_owned_fd_unchecked(descriptor)?;
            Ok((leader, watch))
        });
        match watched {
            Ok((leader, watch)) => Ok(Self {
                child,
                leader,
                watch,
                reaped: false,
            }),
            Err(error) => {
                // It has run for no time, and nobody will hear of it.
                child.start_kill()?;
                Err(error)
            }
        }
    }

    /// Waits until the leader has exited.
    pub(super) async fn ended(&self) {
        // A descriptor that cannot be waited for counts as one that is ready: `end` waits too.
        drop(self.watch.readable().await);
    }

    /// Asks all of it to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills what is left of it, and reaps the leader.
    pub(super) async fn end(mut self) -> Option<ExitStatus> {
        self.signal(Signal::KILL);
        let status = self.child.wait().await;
        self.reaped = true;
        status.ok()
    }

    fn signal(&self, signal: Signal) {
        if let Err(error) = kill_process_group(self.leader, signal) {
            tracing::debug!(%error, leader = ?self.leader, ?signal, "group was not signalled");
        }
    }

    /// Waits on this thread until the leader has exited.
    fn wait_blocking(&self, most: Duration) {
        let within = Timespec::try_from(most).ok();
        let mut descriptors = [PollFd::new(&self.watch, PollFlags::IN)];
        if let Err(error) = poll(&mut descriptors, within.as_ref()) {
            tracing::debug!(%error, "end of a program was not waited for");
        }
    }
}

impl Drop for Group {
    /// Runs with a group that is not reaped only if the runtime is shut down around its keeper.
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        self.signal(Signal::TERM);
        self.wait_blocking(LAST_GRACE);
        self.signal(Signal::KILL);
        self.wait_blocking(LAST_REAP);
        if let Err(error) = self.child.try_wait() {
            tracing::debug!(%error, "program was not reaped");
        }
    }
}

fn leader(child: &Child) -> io::Result<Pid> {
    child
        .id()
        .and_then(|id| Pid::from_raw(id.cast_signed()))
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}
