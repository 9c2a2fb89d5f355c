//! Who may listen on a unix socket that a client connects to.

use std::io;

use tokio::net::UnixStream;

use crate::confined::Confinement;

/// Which listeners a client accepts on a unix socket.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ListenerTrust {
    /// Whoever listens there. The path says who that is.
    #[default]
    Any,
    /// A process of this account that is under no more restrictions than this one. Otherwise a
    /// sandboxed command that put its own socket there would be given whatever the client runs.
    OwnAccount,
}

/// Peer: what listens on the socket is not what the client may talk to.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UntrustedListener {
    /// It belongs to another account.
    #[error("it belongs to account {account}, and this process to account {ours}")]
    OtherAccount {
        /// The account of the listener.
        account: u32,
        /// The account of this process.
        ours: u32,
    },
    /// It runs in a sandbox.
    #[error("process {process} listens there in a stricter sandbox than this process runs in")]
    Confined {
        /// The listener.
        process: i32,
    },
}

impl ListenerTrust {
    /// Checks who listens at the other end of a connection.
    ///
    /// # Errors
    /// When the kernel cannot tell, or the listener has ended meanwhile.
    pub(super) fn check(self, stream: &UnixStream) -> io::Result<Result<(), UntrustedListener>> {
        if self == Self::Any {
            return Ok(Ok(()));
        }
        let listener = stream.peer_cred()?;
        let (account, ours) = (listener.uid(), rustix::process::geteuid().as_raw());
        if account != ours {
            return Ok(Err(UntrustedListener::OtherAccount { account, ours }));
        }
        match Confinement::of(listener.pid()) {
            Confinement::NotStricter | Confinement::Invisible => Ok(Ok(())),
            Confinement::Stricter => Ok(Err(UntrustedListener::Confined {
                process: listener.pid().unwrap_or_default(),
            })),
            Confinement::Gone => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}
