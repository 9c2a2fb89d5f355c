//! The server of this machine that the commands for people use.

use std::{fmt, os::unix::net::UnixStream, path::PathBuf};

use rustix::net::sockopt::socket_peercred;
use serde::Serialize;

use crate::{command::LocalSocket, settings_source::Lookup};

/// Whether the server of this machine runs. Nothing is started to find out.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalServer {
    /// Where it listens, or would.
    pub socket: PathBuf,
    /// Its process. Absent: it does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
}

impl LocalServer {
    /// Looks for it.
    pub fn look(lookup: Lookup<'_>) -> Self {
        let socket = LocalSocket::find(lookup).path().to_owned();
        let listener = UnixStream::connect(&socket).ok();
        let pid = listener.and_then(|stream| socket_peercred(stream).ok());
        Self {
            socket,
            pid: pid.map(|peer| peer.pid.as_raw_nonzero().get()),
        }
    }
}

impl fmt::Display for LocalServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let socket = self.socket.display();
        match self.pid {
            Some(pid) => write!(f, "their server runs as process {pid}, at unix://{socket}"),
            None => write!(
                f,
                "the first of them starts their server, at unix://{socket}"
            ),
        }
    }
}
