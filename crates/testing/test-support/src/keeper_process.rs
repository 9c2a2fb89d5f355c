//! The keeper of a state directory, as a test sees it.

use std::path::Path;

use rustix::{
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt},
    process::{Pid, Signal, kill_process},
};

/// Returns the keeper of a state directory, if one answers.
pub fn keeper_of(state: &Path) -> Option<Pid> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let address = SocketAddrUnix::new(state.join("keeper.sock")).ok()?;
    connect(&socket, &address).ok()?;
    let peer = sockopt::socket_peercred(&socket).ok()?;
    Some(peer.pid)
}

/// Kills the keeper of a state directory. Without a server, this kills all durable processes.
pub fn kill_keeper_of(state: &Path) {
    if let Some(keeper) = keeper_of(state) {
        // It may exit by itself meanwhile.
        let _gone = kill_process(keeper, Signal::KILL);
    }
}
