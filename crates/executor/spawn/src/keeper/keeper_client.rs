//! A server's connection to the keeper. Every call has one answer and a time limit.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Signal, pidfd_send_signal},
};

use super::{
    DurableSpawner, HeldRecord, KeeperError, KeeperHandle, KeeperSlot, MAX_SLOTS, SlotDescriptor,
    keeper_message::{KeeperMessage, KeeperMessageKind, PROTOCOL_VERSION, ReceivedMessage},
    keeper_socket::{LockedDirectory, open_program, reap_keepers},
    peer_process::PeerProcess,
};
use crate::spawner::has_exited;

/// How long a call waits for its answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long connecting takes at most, including the start of a keeper.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often to continue a keeper that does not answer: commands of its account can stop it.
const RESUME_INTERVAL: Duration = Duration::from_millis(100);
/// How often to try again if a keeper is killed between its start and the first answer.
const CONNECT_ATTEMPTS: u32 = 3;

/// A connection to the keeper.
///
/// Calls block, normally for some microseconds and at most two seconds. After
/// [`KeeperError::Unresponsive`] the connection stays usable, and the call may be carried out
/// later. All calls can be repeated.
#[derive(Debug)]
pub struct KeeperClient {
    connection: Mutex<KeeperConnection>,
    pidfd: OwnedFd,
    pid: i32,
}

#[derive(Debug)]
struct KeeperConnection {
    socket: OwnedFd,
    /// Sequence number of the last request.
    sequence: u32,
}

impl KeeperClient {
    /// Connects to the keeper that listens on `socket`. `None`: none is running.
    ///
    /// # Errors
    /// Fails if a keeper is running, but cannot be used.
    pub fn connect(socket: &Path) -> Result<Option<Self>, KeeperError> {
        reap_keepers();
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let directory = LockedDirectory::lock(socket, deadline)?;
        match directory.connect()?.map(Self::greet).transpose() {
            Err(KeeperError::Gone) => Ok(None),
            connected => connected,
        }
    }

    /// Connects to the keeper that listens on `socket`, and starts `program` as the keeper if none
    /// is running. The directory must exist. Several processes may call this at once.
    ///
    /// # Errors
    /// Fails if the keeper cannot be started or used.
    pub fn connect_or_start(socket: &Path, program: &Path) -> Result<Self, KeeperError> {
        reap_keepers();
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let directory = LockedDirectory::lock(socket, deadline)?;
        for _ in 0..CONNECT_ATTEMPTS {
            match directory.connect()?.map(Self::greet) {
                None => directory.start(program, deadline)?,
                // Killed meanwhile.
                Some(Err(KeeperError::Gone)) => {}
                Some(connected) => return connected,
            }
        }
        match directory.connect()?.map(Self::greet) {
            Some(connected) => connected,
            None => Err(KeeperError::Start(io::ErrorKind::ConnectionRefused.into())),
        }
    }

    /// Exchanges the protocol version over a new connection.
    fn greet(socket: OwnedFd) -> Result<Self, KeeperError> {
        let peer = PeerProcess::of(&socket).map_err(KeeperError::Socket)?;
        // The answer below proves that the keeper was alive after this, so that the pid is its own.
        let pidfd = match peer.pidfd() {
            Ok(pidfd) => pidfd,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                return Err(KeeperError::Gone);
            }
            Err(error) => return Err(KeeperError::Socket(error)),
        };
        if !peer.is_trusted() {
            return Err(match has_exited(&pidfd) {
                true => KeeperError::Gone,
                false => KeeperError::Untrusted { pid: peer.pid },
            });
        }
        let client = Self {
            connection: Mutex::new(KeeperConnection {
                socket,
                sequence: 0,
            }),
            pidfd,
            pid: peer.pid,
        };
        let hello = KeeperMessage {
            value: PROTOCOL_VERSION,
            ..KeeperMessage::new(KeeperMessageKind::Hello)
        };
        let (answer, _) = client.call(hello, &[])?;
        match (answer.kind, answer.value) {
            (KeeperMessageKind::Hello, PROTOCOL_VERSION) => Ok(client),
            (KeeperMessageKind::Hello, theirs) => Err(KeeperError::Version {
                theirs,
                ours: PROTOCOL_VERSION,
            }),
            _ => Err(KeeperError::InvalidAnswer),
        }
    }

    /// Hands duplicates of descriptors to the keeper. A slot that is in use is replaced.
    ///
    /// # Errors
    /// Fails if the keeper is full, or does not answer.
    pub fn hold(
        &self,
        record: &[u8; 16],
        descriptors: &[SlotDescriptor<'_>],
    ) -> Result<(), KeeperError> {
        let by_slot: BTreeMap<KeeperSlot, BorrowedFd<'_>> = descriptors.iter().copied().collect();
        if by_slot.is_empty() {
            return Ok(());
        }
        let request = KeeperMessage {
            slots: by_slot.keys().fold(0, |slots, slot| slots | slot.bit()),
            record: *record,
            ..KeeperMessage::new(KeeperMessageKind::Hold)
        };
        let descriptors: Vec<BorrowedFd<'_>> = by_slot.into_values().collect();
        self.acknowledged(request, &descriptors)
    }

    /// Closes the keeper's duplicate in a slot, if there is one.
    ///
    /// # Errors
    /// Fails if the keeper does not answer.
    pub fn release(&self, record: &[u8; 16], slot: KeeperSlot) -> Result<(), KeeperError> {
        let request = KeeperMessage {
            slots: slot.bit(),
            record: *record,
            ..KeeperMessage::new(KeeperMessageKind::Release)
        };
        self.acknowledged(request, &[])
    }

    /// Closes all of the keeper's duplicates of a record, if there are any.
    ///
    /// # Errors
    /// Fails if the keeper does not answer.
    pub fn drop_record(&self, record: &[u8; 16]) -> Result<(), KeeperError> {
        let request = KeeperMessage {
            record: *record,
            ..KeeperMessage::new(KeeperMessageKind::Drop)
        };
        self.acknowledged(request, &[])
    }

    /// Returns all records with duplicates of their descriptors, in the order of their ids. The
    /// keeper goes on holding them.
    ///
    /// # Errors
    /// Fails if the keeper does not answer, or if this process runs out of descriptors.
    pub fn list(&self) -> Result<Vec<HeldRecord>, KeeperError> {
        let mut records: Vec<HeldRecord> = Vec::new();
        loop {
            let request = match records.last() {
                None => KeeperMessage::new(KeeperMessageKind::Next),
                Some(last) => KeeperMessage {
                    value: 1,
                    record: last.record,
                    ..KeeperMessage::new(KeeperMessageKind::Next)
                },
            };
            let (answer, descriptors) = self.call(request, &[])?;
            let is_later = records
                .last()
                .is_none_or(|last| last.record < answer.record);
            if answer.kind == KeeperMessageKind::End {
                return Ok(records);
            }
            if answer.kind != KeeperMessageKind::Record || !is_later {
                return Err(KeeperError::InvalidAnswer);
            }
            records.push(HeldRecord {
                record: answer.record,
                descriptors: by_slot(answer.slots, descriptors),
            });
        }
    }

    /// Starts `program` as a durable spawner.
    ///
    /// # Errors
    /// Fails if the keeper cannot start it, or does not answer.
    pub fn start_spawner(&self, program: &Path) -> Result<DurableSpawner, KeeperError> {
        let program = open_program(program)?;
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(KeeperError::socket)?;
        let request = KeeperMessage::new(KeeperMessageKind::StartSpawner);
        let (answer, descriptors) = self.call(request, &[program.as_fd(), theirs.as_fd()])?;
        match (answer.kind, <[OwnedFd; 1]>::try_from(descriptors)) {
            (KeeperMessageKind::Spawner, Ok([pidfd])) => Ok(DurableSpawner {
                socket: ours,
                pid: answer.value,
                pidfd,
            }),
            _ => Err(KeeperError::InvalidAnswer),
        }
    }

    /// Returns the pid of the keeper.
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Returns a descriptor that becomes readable when the keeper exits.
    pub fn exit_descriptor(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Returns whether the keeper has exited.
    pub fn has_exited(&self) -> bool {
        has_exited(&self.pidfd)
    }

    fn acknowledged(
        &self,
        request: KeeperMessage,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), KeeperError> {
        let (answer, _) = self.call(request, descriptors)?;
        if answer.kind == KeeperMessageKind::Ack {
            Ok(())
        } else {
            Err(KeeperError::InvalidAnswer)
        }
    }

    /// Sends a request and waits for its answer.
    fn call(
        &self,
        request: KeeperMessage,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(KeeperMessage, Vec<OwnedFd>), KeeperError> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connection.sequence = connection.sequence.wrapping_add(1);
        let request = KeeperMessage {
            sequence: connection.sequence,
            ..request
        };
        self.resume();
        loop {
            match request.send(&connection.socket, descriptors) {
                Ok(()) => break,
                Err(Errno::AGAIN) => self.wait(&connection.socket, PollFlags::OUT, deadline)?,
                // The keeper has refused the connection; the reason is still to be read.
                Err(Errno::PIPE | Errno::CONNRESET) => break,
                Err(errno) => return Err(KeeperError::socket(errno)),
            }
        }
        loop {
            let (answer, descriptors) = match ReceivedMessage::receive(&connection.socket) {
                Ok(ReceivedMessage::Complete(answer, descriptors)) => (answer, descriptors),
                Ok(ReceivedMessage::OutOfDescriptors(_)) => {
                    return Err(KeeperError::socket(Errno::MFILE));
                }
                Ok(ReceivedMessage::Malformed) => return Err(KeeperError::InvalidAnswer),
                Ok(ReceivedMessage::Closed) => return Err(KeeperError::Gone),
                Err(Errno::AGAIN) => {
                    self.wait(&connection.socket, PollFlags::IN, deadline)?;
                    continue;
                }
                // Reported once, before the messages that the keeper had sent.
                Err(Errno::CONNRESET) => continue,
                Err(errno) => return Err(KeeperError::socket(errno)),
            };
            let is_refusal = answer.sequence == 0 && answer.kind == KeeperMessageKind::Error;
            if answer.sequence == connection.sequence || is_refusal {
                return check_error(answer).map(|answer| (answer, descriptors));
            }
            // The answer to a call that timed out.
        }
    }

    /// Waits until the socket is ready, and continues a stopped keeper meanwhile.
    fn wait(
        &self,
        socket: &OwnedFd,
        events: PollFlags,
        deadline: Instant,
    ) -> Result<(), KeeperError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(KeeperError::Unresponsive { pid: self.pid });
            }
            let slice = Timespec::try_from(left.min(RESUME_INTERVAL)).ok();
            match poll(&mut [PollFd::new(socket, events)], slice.as_ref()) {
                Ok(0) | Err(Errno::INTR) => self.resume(),
                Ok(_) => return Ok(()),
                Err(errno) => return Err(KeeperError::socket(errno)),
            }
        }
    }

    fn resume(&self) {
        if let Err(errno) = pidfd_send_signal(&self.pidfd, Signal::CONT) {
            tracing::debug!(%errno, "failed to continue the keeper");
        }
    }
}

impl KeeperHandle for KeeperClient {
    fn start_spawner(&self, program: &Path) -> Result<DurableSpawner, KeeperError> {
        Self::start_spawner(self, program)
    }
}

impl Drop for KeeperClient {
    fn drop(&mut self) {
        reap_keepers();
    }
}

fn check_error(answer: KeeperMessage) -> Result<KeeperMessage, KeeperError> {
    if answer.kind != KeeperMessageKind::Error {
        return Ok(answer);
    }
    Err(match Errno::from_raw_os_error(answer.value.cast_signed()) {
        Errno::PERM if answer.sequence == 0 => KeeperError::Refused,
        Errno::BUSY if answer.sequence == 0 => KeeperError::Busy,
        Errno::NOSPC => KeeperError::Full,
        errno => KeeperError::Failed(errno.into()),
    })
}

/// Pairs descriptors with their slots. Slots of a later version are left out.
fn by_slot(slots: u32, descriptors: Vec<OwnedFd>) -> BTreeMap<KeeperSlot, OwnedFd> {
    let indices = (0..MAX_SLOTS).filter(|slot| slots >> slot & 1 == 1);
    indices
        .zip(descriptors)
        .filter_map(|(index, descriptor)| Some((KeeperSlot::from_index(index)?, descriptor)))
        .collect()
}
