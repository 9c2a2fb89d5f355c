//! The event loop of the keeper: serves clients, holds descriptors, starts durable spawners, and
//! kills the orphans of dead ones.

use std::{
    collections::BTreeMap,
    env::ArgsOs,
    ffi::OsString,
    ops::Bound,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::{Errno, fcntl_dupfd_cloexec},
    net::{SocketFlags, accept_with, listen},
    process::{Pid, PidfdFlags, Resource, Rlimit, pidfd_open, prlimit},
    stdio,
};

use super::{
    MAX_RECORDS, MAX_SLOTS,
    keeper_message::{KeeperMessage, KeeperMessageKind, PROTOCOL_VERSION, ReceivedMessage},
    keeper_socket::SocketFile,
    peer_process::PeerProcess,
};
use crate::{
    raw,
    spawner::{DURABLE_SPAWNER_NAME, block_signals, stop_orphans_except},
};

/// Most clients at once.
const MAX_CLIENTS: usize = 16;
/// Most durable spawners at once. A server needs one.
const MAX_SPAWNERS: usize = 64;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// How long the keeper waits for a client before it exits.
const IDLE_GRACE: Duration = Duration::from_secs(1);
/// How long to wait after a failed accept. Mostly, the host is out of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How often to look for orphans of a dead spawner.
const ORPHAN_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How many checks supervisors get to kill their own trees and report the exit.
const GRACE_CHECKS: u32 = 5;
/// How many checks in a row must find no orphan. One may be missed while it is handed from a dying
/// supervisor to this process.
const CLEAN_CHECKS: u32 = 3;

/// Serves the socket on standard input. Standard output is the directory of its file. Never
/// returns.
pub(super) fn run(arguments: ArgsOs) -> ! {
    match KeeperLoop::new(arguments) {
        Some(keeper) => keeper.run(),
        None => raw::exit(1),
    }
}

struct KeeperLoop {
    listener: OwnedFd,
    directory: OwnedFd,
    file: SocketFile,
    signals: OwnedFd,
    /// Soft and hard limit of open files that spawners get.
    open_files: [u64; 2],
    clients: Vec<ConnectedClient>,
    records: BTreeMap<[u8; 16], HeldDescriptors>,
    /// Pids of durable spawners that were not reaped.
    spawners: Vec<i32>,
    orphans: Option<OrphanChecks>,
    idle_since: Option<Instant>,
    accept_failed: bool,
}

type HeldDescriptors = [Option<OwnedFd>; MAX_SLOTS];

/// A connected client.
struct ConnectedClient {
    socket: OwnedFd,
    /// Whether the protocol version was exchanged.
    greeted: bool,
}

/// Checks for orphans after the death of a durable spawner.
struct OrphanChecks {
    next: Instant,
    made: u32,
    clean: u32,
}

/// The client broke the protocol or is gone.
struct ClientGone;

impl KeeperLoop {
    fn new(arguments: ArgsOs) -> Option<Self> {
        let arguments: Vec<OsString> = arguments.collect();
        let file = SocketFile::from_arguments(&arguments)?;
        raw::close_range(3, i32::MAX).ok()?;
        let _ = raw::setsid();
        raw::prctl(libc::PR_SET_NAME, c"exec-keeper".as_ptr() as usize).ok()?;
        raw::prctl(libc::PR_SET_CHILD_SUBREAPER, 1).ok()?;
        for signal in 1..=64 {
            // Fails for SIGKILL and SIGSTOP.
            let _ = raw::reset_signal(signal);
        }
        // No signal ends the keeper, except SIGKILL.
        let signals = block_signals(&[libc::SIGCHLD])?;
        let open_files = raw::raise_open_file_limit().ok()?;
        let listener = fcntl_dupfd_cloexec(stdio::stdin(), 3).ok()?;
        let directory = fcntl_dupfd_cloexec(stdio::stdout(), 3).ok()?;
        // Only now, so that the kernel reports this process as the peer of each client.
        listen(&listener, BACKLOG).ok()?;
        let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        stdio::dup2_stdin(&null).ok()?;
        stdio::dup2_stdout(&null).ok()?;
        // Standard error is a pipe until here; its end means to the starter that clients can
        // connect.
        stdio::dup2_stderr(&null).ok()?;
        Some(Self {
            listener,
            directory,
            file,
            signals,
            open_files,
            clients: Vec::new(),
            records: BTreeMap::new(),
            spawners: Vec::new(),
            orphans: None,
            idle_since: None,
            accept_failed: false,
        })
    }

    fn run(mut self) -> ! {
        loop {
            let (accepts, signals, clients) = self.wait();
            if signals {
                self.reap();
            }
            self.serve_clients(&clients);
            if accepts {
                self.accept();
            }
            self.check_orphans();
            if self.is_idle() {
                self.exit_if_unused();
            } else {
                self.idle_since = None;
            }
        }
    }

    /// Waits for an event. Returns whether a connection and a signal arrived, and which clients
    /// have sent something.
    fn wait(&mut self) -> (bool, bool, Vec<bool>) {
        let listener_events = match self.accept_failed {
            true => PollFlags::empty(),
            false => PollFlags::IN,
        };
        let mut fds = vec![
            PollFd::new(&self.listener, listener_events),
            PollFd::new(&self.signals, PollFlags::IN),
        ];
        let clients = self.clients.iter();
        fds.extend(clients.map(|client| PollFd::new(&client.socket, PollFlags::IN)));
        let timeout = self
            .timeout()
            .and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => raw::exit(1),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let (accepts, signals) = (ready.next(), ready.next());
        let events = (
            accepts.unwrap_or(false),
            signals.unwrap_or(false),
            ready.collect(),
        );
        drop(fds);
        self.accept_failed = false;
        events
    }

    fn timeout(&self) -> Option<Duration> {
        let idle = self
            .idle_since
            .map(|since| IDLE_GRACE.saturating_sub(since.elapsed()));
        let orphans = self
            .orphans
            .as_ref()
            .map(|checks| checks.next.saturating_duration_since(Instant::now()));
        let accept = self.accept_failed.then_some(ACCEPT_RETRY);
        [idle, orphans, accept].into_iter().flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.clients.is_empty()
            && self.records.is_empty()
            && self.spawners.is_empty()
            && self.orphans.is_none()
    }

    /// Exits after the grace period, or at once if the socket's file is no longer ours.
    fn exit_if_unused(&mut self) {
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        let is_reachable = self.file.is_in(&self.directory);
        if is_reachable && since.elapsed() < IDLE_GRACE {
            return;
        }
        self.idle_since = Some(Instant::now());
        // Clients connect while they hold this lock, so that none meets an exiting keeper.
        if flock(&self.directory, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
        if matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0)) {
            self.file.remove_from(&self.directory);
            raw::exit(0);
        }
        let _ = flock(&self.directory, FlockOperation::Unlock);
    }

    fn accept(&mut self) {
        let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => return,
            Err(_) => {
                self.accept_failed = true;
                return;
            }
        };
        let refusal = match PeerProcess::of(&socket) {
            Ok(peer) if peer.is_trusted() => {
                (self.clients.len() >= MAX_CLIENTS).then_some(Errno::BUSY)
            }
            Ok(_) | Err(_) => Some(Errno::PERM),
        };
        match refusal {
            // If it does not arrive, the client sees the closed socket.
            Some(errno) => drop(error(errno).send(&socket, &[])),
            None => self.clients.push(ConnectedClient {
                socket,
                greeted: false,
            }),
        }
    }

    fn serve_clients(&mut self, ready: &[bool]) {
        // From the last to the first, so that removal keeps the indices of the others.
        for (index, _) in ready.iter().enumerate().rev().filter(|(_, ready)| **ready) {
            if self.serve_client(index).is_err() {
                self.clients.swap_remove(index);
            }
        }
    }

    /// Answers one request of a client.
    fn serve_client(&mut self, index: usize) -> Result<(), ClientGone> {
        let client = self.clients.get_mut(index).ok_or(ClientGone)?;
        let (request, descriptors) = match ReceivedMessage::receive(&client.socket) {
            Ok(ReceivedMessage::Complete(request, descriptors)) => (request, descriptors),
            Ok(ReceivedMessage::OutOfDescriptors(request)) if client.greeted => {
                let answer = error(Errno::MFILE);
                return answer.answering(&request).send_to(&client.socket, &[]);
            }
            Err(Errno::AGAIN) => return Ok(()),
            Ok(
                ReceivedMessage::OutOfDescriptors(_)
                | ReceivedMessage::Malformed
                | ReceivedMessage::Closed,
            )
            | Err(_) => return Err(ClientGone),
        };
        if !client.greeted {
            return client.greet(&request);
        }
        let mut pidfd = None;
        let answer = match request.kind {
            KeeperMessageKind::Hold => self.hold(&request, descriptors)?,
            KeeperMessageKind::Release => self.release(&request)?,
            KeeperMessageKind::Drop => {
                self.records.remove(&request.record);
                KeeperMessage::new(KeeperMessageKind::Ack)
            }
            KeeperMessageKind::Next => return self.send_next(&request, index),
            KeeperMessageKind::StartSpawner => match self.start_spawner(descriptors) {
                Ok((pid, descriptor)) => {
                    pidfd = Some(descriptor);
                    KeeperMessage {
                        value: pid.unsigned_abs(),
                        ..KeeperMessage::new(KeeperMessageKind::Spawner)
                    }
                }
                Err(errno) => error(errno),
            },
            KeeperMessageKind::Hello
            | KeeperMessageKind::Ack
            | KeeperMessageKind::Error
            | KeeperMessageKind::Record
            | KeeperMessageKind::End
            | KeeperMessageKind::Spawner => return Err(ClientGone),
        };
        let descriptors: Vec<BorrowedFd<'_>> = pidfd.iter().map(AsFd::as_fd).collect();
        let client = self.clients.get(index).ok_or(ClientGone)?;
        let answer = answer.answering(&request);
        answer.send_to(&client.socket, &descriptors)
    }

    fn hold(
        &mut self,
        request: &KeeperMessage,
        descriptors: Vec<OwnedFd>,
    ) -> Result<KeeperMessage, ClientGone> {
        if request.slots == 0 {
            return Err(ClientGone);
        }
        if self.records.len() >= MAX_RECORDS && !self.records.contains_key(&request.record) {
            return Ok(error(Errno::NOSPC));
        }
        let held = self.records.entry(request.record).or_default();
        let slots = (0..MAX_SLOTS).filter(|slot| request.slots >> slot & 1 == 1);
        for (slot, descriptor) in slots.zip(descriptors) {
            held[slot] = Some(descriptor);
        }
        Ok(KeeperMessage::new(KeeperMessageKind::Ack))
    }

    fn release(&mut self, request: &KeeperMessage) -> Result<KeeperMessage, ClientGone> {
        if request.slots == 0 {
            return Err(ClientGone);
        }
        if let Some(held) = self.records.get_mut(&request.record) {
            for (slot, descriptor) in held.iter_mut().enumerate() {
                if request.slots >> slot & 1 == 1 {
                    *descriptor = None;
                }
            }
            if held.iter().all(Option::is_none) {
                self.records.remove(&request.record);
            }
        }
        Ok(KeeperMessage::new(KeeperMessageKind::Ack))
    }

    /// Sends the record after the one in the request.
    fn send_next(&self, request: &KeeperMessage, index: usize) -> Result<(), ClientGone> {
        let client = self.clients.get(index).ok_or(ClientGone)?;
        let after = match request.value {
            0 => Bound::Unbounded,
            _ => Bound::Excluded(request.record),
        };
        let Some((record, held)) = self.records.range((after, Bound::Unbounded)).next() else {
            let end = KeeperMessage::new(KeeperMessageKind::End);
            return end.answering(request).send_to(&client.socket, &[]);
        };
        let mut answer = KeeperMessage {
            record: *record,
            ..KeeperMessage::new(KeeperMessageKind::Record)
        };
        let mut descriptors = Vec::new();
        for (slot, descriptor) in held.iter().enumerate() {
            if let Some(descriptor) = descriptor {
                answer.slots |= 1 << slot;
                descriptors.push(descriptor.as_fd());
            }
        }
        answer
            .answering(request)
            .send_to(&client.socket, &descriptors)
    }

    /// Starts a durable spawner. Returns its pid and a pidfd.
    fn start_spawner(&mut self, descriptors: Vec<OwnedFd>) -> Result<(i32, OwnedFd), Errno> {
        let [program, socket]: [OwnedFd; 2] = descriptors.try_into().map_err(|_| Errno::INVAL)?;
        if self.spawners.len() >= MAX_SPAWNERS {
            return Err(Errno::AGAIN);
        }
        let child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg0(DURABLE_SPAWNER_NAME)
            .env_clear()
            .current_dir("/")
            .stdin(socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let pid = child.id().cast_signed();
        self.spawners.push(pid);
        let number = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        // The raised limit is for the keeper alone. No command starts before the client has the
        // answer.
        let [soft, hard] = self.open_files;
        let limit = Rlimit {
            current: Some(soft),
            maximum: Some(hard),
        };
        let _ = prlimit(Some(number), Resource::Nofile, limit);
        // `reap` has not run since, so the pid is still its own.
        let pidfd = pidfd_open(number, PidfdFlags::empty())?;
        Ok((pid, pidfd))
    }

    fn reap(&mut self) {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        while rustix::io::read(&self.signals, &mut record).is_ok() {}
        loop {
            match raw::wait_any(&mut 0, &mut raw::zeroed_rusage()) {
                Ok(pid @ 1..) => {
                    let count = self.spawners.len();
                    self.spawners.retain(|spawner| *spawner != pid);
                    if self.spawners.len() < count {
                        self.orphans = Some(OrphanChecks {
                            next: Instant::now(),
                            made: 0,
                            clean: 0,
                        });
                    }
                }
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Kills what dead spawners have left: first, supervisors have time to do it.
    fn check_orphans(&mut self) {
        let Some(checks) = &mut self.orphans else {
            return;
        };
        if Instant::now() < checks.next {
            return;
        }
        checks.next = Instant::now() + ORPHAN_CHECK_INTERVAL;
        checks.made = checks.made.saturating_add(1);
        let found = stop_orphans_except(&self.spawners, checks.made > GRACE_CHECKS);
        checks.clean = if found { 0 } else { checks.clean + 1 };
        if checks.clean >= CLEAN_CHECKS {
            self.orphans = None;
        }
        self.reap();
    }
}

impl ConnectedClient {
    /// Answers the first request. A client of another version learns this version.
    fn greet(&mut self, request: &KeeperMessage) -> Result<(), ClientGone> {
        if request.kind != KeeperMessageKind::Hello {
            return Err(ClientGone);
        }
        let answer = KeeperMessage {
            value: PROTOCOL_VERSION,
            ..KeeperMessage::new(KeeperMessageKind::Hello)
        };
        answer.answering(request).send_to(&self.socket, &[])?;
        if request.value != PROTOCOL_VERSION {
            return Err(ClientGone);
        }
        self.greeted = true;
        Ok(())
    }
}

impl KeeperMessage {
    fn answering(self, request: &Self) -> Self {
        Self {
            sequence: request.sequence,
            ..self
        }
    }

    /// Sends an answer. A client that does not read its answers is disconnected.
    fn send_to(&self, socket: &OwnedFd, descriptors: &[BorrowedFd<'_>]) -> Result<(), ClientGone> {
        match self.send(socket, descriptors) {
            Ok(()) => Ok(()),
            // Too many descriptors are under way.
            Err(Errno::TOOMANYREFS) => {
                let answer = error(Errno::TOOMANYREFS).answering(self);
                answer.send(socket, &[]).map_err(|_| ClientGone)
            }
            Err(_) => Err(ClientGone),
        }
    }
}

fn error(errno: Errno) -> KeeperMessage {
    KeeperMessage {
        value: errno.raw_os_error().unsigned_abs(),
        ..KeeperMessage::new(KeeperMessageKind::Error)
    }
}
