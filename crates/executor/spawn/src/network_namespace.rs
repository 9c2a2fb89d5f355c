//! Network namespaces of other processes, and the request to the spawner for a socket in one.
//!
//! A socket belongs to the namespace in which it was created, in any process. So only its
//! creation needs a process inside: without privileges that is a single-threaded one that enters
//! the user namespace first. Not here: that process (`spawner`), and connecting or listening.

use std::{
    ffi::c_int,
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

use rustix::net::AddressFamily;

use crate::raw;

/// `NS_GET_USERNS`: returns the user namespace that owns a namespace.
const NS_GET_USERNS: usize = 0xb701;

/// A network namespace other than that of this process. It exists at least as long as this handle.
#[derive(Debug)]
pub struct NetworkNamespaceHandle {
    network: OwnedFd,
    /// User namespace that owns it. `None`: not visible from here.
    owner: Option<OwnedFd>,
}

impl NetworkNamespaceHandle {
    /// Opens the network namespace of a process. `None`: it is the namespace of this process.
    ///
    /// The caller checks afterwards that the pid still names the same process.
    ///
    /// # Errors
    /// Fails if the process does not exist, or belongs to an account that this one may not inspect.
    pub fn of_process(pid: i32) -> io::Result<Option<Self>> {
        let network = File::open(format!("/proc/{pid}/ns/net"))?;
        let (this, own) = (network.metadata()?, std::fs::metadata("/proc/self/ns/net")?);
        if (this.dev(), this.ino()) == (own.dev(), own.ino()) {
            return Ok(None);
        }
        let args = [raw::int_arg(network.as_raw_fd()), NS_GET_USERNS, 0];
        let owner = raw::syscall(libc::SYS_ioctl, args).map(raw::to_i32);
        // SAFETY: the descriptor is new and owned by nothing else.
        let owner = owner.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Some(Self {
            network: network.into(),
            owner: owner.ok(),
        }))
    }
}

/// Request to the spawner for a TCP socket in a namespace.
#[derive(Debug)]
pub struct SocketRequest<'a> {
    /// Namespace of the socket.
    pub namespace: &'a NetworkNamespaceHandle,
    /// Address family of the socket.
    pub family: AddressFamily,
}

/// Size of a request's body, which no command has.
pub(crate) const SOCKET_REQUEST_BYTES: usize = 4;
/// Size of the reply to a failed request: the step and the error number. The reply to a successful
/// one is a byte with the socket attached.
pub const SOCKET_FAILURE_BYTES: usize = 8;
/// Steps in the reply to a failed request.
pub(crate) const JOIN_STEP: u32 = 1;
pub(crate) const CREATE_STEP: u32 = 2;

impl<'a> SocketRequest<'a> {
    /// Encodes the frame without its descriptors.
    pub fn encode(&self) -> Vec<u8> {
        let body = c_int::from(self.family.as_raw()).to_le_bytes();
        let descriptors = 2 + u32::from(self.namespace.owner.is_some());
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        [length.to_le_bytes(), descriptors.to_le_bytes(), body].concat()
    }

    /// Returns the descriptors in the order in which they are sent. `reply` receives the socket.
    pub fn descriptors(&self, reply: BorrowedFd<'a>) -> Vec<BorrowedFd<'a>> {
        let owner = self.namespace.owner.as_ref().map(AsFd::as_fd);
        let descriptors = [reply, self.namespace.network.as_fd()];
        descriptors.into_iter().chain(owner).collect()
    }
}

/// Why a socket in another network namespace was not created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketRequestError {
    /// Host: the namespace could not be entered.
    #[error("cannot enter the network namespace of the process")]
    Join(#[source] io::Error),
    /// Host: the namespace has no such sockets, or a limit is reached.
    #[error("cannot create a socket in the network namespace of the process")]
    Create(#[source] io::Error),
    /// Host: the spawner did not reply.
    #[error("cannot ask for a socket in the network namespace of the process")]
    Spawner(#[source] io::Error),
}

impl SocketRequestError {
    /// Decodes the reply to a failed request.
    pub fn decode(reply: [u8; SOCKET_FAILURE_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h] = reply;
        let error = io::Error::from_raw_os_error(i32::from_le_bytes([e, f, g, h]));
        match u32::from_le_bytes([a, b, c, d]) {
            JOIN_STEP => Self::Join(error),
            _ => Self::Create(error),
        }
    }
}
