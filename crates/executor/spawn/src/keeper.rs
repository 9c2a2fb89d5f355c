//! The keeper: a small process that holds descriptors of durable processes while no server runs.
//!
//! A server gives the keeper duplicates of all descriptors that a process needs to go on: the
//! control socket of its supervisor and the ends of its pipes or terminal. If the server is killed,
//! these stay open, so the process goes on. The next server lists the records, receives the
//! descriptors, and adopts the process. The keeper also starts *durable spawners*, because their
//! parent must outlive the server, and kills the orphans of one that died.
//!
//! The keeper listens on a unix socket in the state directory and speaks a protocol of fixed-size
//! messages with processes of its account that are not sandboxed. It reads and writes none of the
//! descriptors that it holds. It exits when it holds nothing, has no child and serves no client.
//!
//! If only the keeper dies, nothing else does. The server starts another one and hands all
//! descriptors over again. If both die, the control sockets close and each supervisor kills its
//! tree.
//!
//! Like a spawner, the keeper is a fresh image of the executable, chosen by its name before `main`.

mod keeper_client;
mod keeper_loop;
mod keeper_message;
mod keeper_socket;
mod peer_process;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fmt::Debug,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

pub use self::keeper_client::KeeperClient;

/// `argv[0]` of a keeper.
const KEEPER_NAME: &str = "exec-server-keeper";
/// Most records that a keeper holds.
pub const MAX_RECORDS: usize = 4096;
/// Most descriptors of one record.
pub const MAX_SLOTS: usize = 12;

/// Runs the keeper, and never returns, if this process was started as one.
pub(crate) fn run_if_keeper() {
    let mut arguments = std::env::args_os();
    if arguments.next().as_deref() == Some(OsStr::new(KEEPER_NAME)) {
        keeper_loop::run(arguments);
    }
}

/// Purpose of a descriptor in a record.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum KeeperSlot {
    /// The server's end of the supervisor's control socket.
    Control = 0,
    /// The end of the command's stdin pipe that is written to.
    Stdin = 1,
    /// The end of the command's stdout pipe that is read.
    Stdout = 2,
    /// The end of the command's stderr pipe that is read.
    Stderr = 3,
    /// The controlling side of the command's terminal.
    Terminal = 4,
    /// Read end of the pipe that holds output of a terminal.
    HoldRead = 5,
    /// Write end of the pipe that holds output of a terminal.
    HoldWrite = 6,
    /// Read end of the pipe that holds input of a terminal.
    InputHoldRead = 7,
    /// Write end of the pipe that holds input of a terminal.
    InputHoldWrite = 8,
    /// The file of undelivered input. Its position is the delivered length.
    InputFile = 9,
    /// A pidfd of the durable spawner.
    SpawnerPid = 10,
}

impl KeeperSlot {
    /// All slots, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Control,
        Self::Stdin,
        Self::Stdout,
        Self::Stderr,
        Self::Terminal,
        Self::HoldRead,
        Self::HoldWrite,
        Self::InputHoldRead,
        Self::InputHoldWrite,
        Self::InputFile,
        Self::SpawnerPid,
    ];

    fn from_index(index: usize) -> Option<Self> {
        Self::ALL.get(index).copied()
    }

    fn bit(self) -> u32 {
        1 << self as u8
    }
}

/// A record that the keeper holds, with duplicates of its descriptors.
#[derive(Debug)]
pub struct HeldRecord {
    /// Id that the server chose.
    pub record: [u8; 16],
    /// The descriptors.
    pub descriptors: BTreeMap<KeeperSlot, OwnedFd>,
}

/// A durable spawner that the keeper has started.
#[derive(Debug)]
pub struct DurableSpawner {
    /// Request socket. When it closes, the spawner exits after its last supervisor.
    pub socket: OwnedFd,
    /// Pid of the spawner.
    pub pid: u32,
    /// A pidfd of the spawner.
    pub pidfd: OwnedFd,
}

/// A connection to the current keeper. A server that replaces a dead keeper implements this on the
/// object that holds the current [`KeeperClient`].
pub trait KeeperHandle: Debug + Send + Sync {
    /// Starts `program` as a durable spawner. Blocks at most a few seconds.
    ///
    /// # Errors
    /// Fails if the keeper does not answer or cannot start the program.
    fn start_spawner(&self, program: &Path) -> Result<DurableSpawner, KeeperError>;
}

/// A descriptor to hold, and its purpose.
pub type SlotDescriptor<'a> = (KeeperSlot, BorrowedFd<'a>);

/// Why a call to the keeper failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// Host: the socket, its directory or a descriptor cannot be used.
    #[error("failed to use the keeper's socket")]
    Socket(#[source] io::Error),
    /// Host: the keeper process did not start.
    #[error("failed to start the keeper")]
    Start(#[source] io::Error),
    /// Host: the keeper could not carry out the request; for example, it ran out of descriptors.
    #[error("keeper failed to carry out a request")]
    Failed(#[source] io::Error),
    /// Caller: the keeper holds the maximum of records. Close durable processes first.
    #[error("keeper is full: it holds {MAX_RECORDS} records")]
    Full,
    /// Caller: another process is starting the keeper, or it has too many clients. Try again.
    #[error("keeper is busy: try again")]
    Busy,
    /// Caller: the keeper was started by another version, which must end its durable processes.
    #[error("keeper speaks protocol version {theirs}, this program {ours}")]
    Version {
        /// Version of the keeper.
        theirs: u32,
        /// Version of this program.
        ours: u32,
    },
    /// Caller: the keeper serves only its own account, and no process in a stricter sandbox.
    #[error("keeper refused the connection: other account or stricter sandbox")]
    Refused,
    /// Host: the process that listens belongs to another account or runs in a stricter sandbox.
    #[error("process {pid} listens on the keeper's socket, but is not trusted")]
    Untrusted {
        /// Pid of the listener.
        pid: i32,
    },
    /// Host: the keeper did not answer in time. It is stopped, or the host is overloaded. A later
    /// call may succeed.
    #[error("keeper (process {pid}) does not respond")]
    Unresponsive {
        /// Pid of the keeper. 0 if unknown.
        pid: i32,
    },
    /// Caller: the keeper has exited. Connect again, and hand all descriptors over again.
    #[error("keeper is gone")]
    Gone,
    /// Us: the answer does not follow the protocol.
    #[error("keeper sent an invalid answer")]
    InvalidAnswer,
}

impl KeeperError {
    /// Creates the error for a failed system call.
    fn socket(errno: rustix::io::Errno) -> Self {
        Self::Socket(errno.into())
    }
}
