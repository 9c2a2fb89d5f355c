//! Pipes between a child and its owner: close-on-exec, our end non-blocking.

use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{Mode, OFlags, fcntl_setfl, open},
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
};

/// Capacity of a pipe that carries much: the child then writes while we read.
pub(crate) const LARGE_BYTES: usize = 256 << 10;

/// A pipe that the child writes: our end, its end.
pub(crate) fn from_child() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfl(&read, OFlags::NONBLOCK)?;
    Ok((read, write))
}

/// A pipe that the child reads: our end, its end.
pub(crate) fn to_child() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfl(&write, OFlags::NONBLOCK)?;
    Ok((write, read))
}

/// Makes a busy pipe larger. An account has a budget for that; beyond it, pipes stay as they are.
pub(crate) fn enlarge(pipe: &OwnedFd) {
    if let Err(errno) = fcntl_setpipe_size(pipe, LARGE_BYTES) {
        tracing::debug!(%errno, "pipe stays small");
    }
}

/// Opens the device that reads as empty.
pub(crate) fn null() -> io::Result<OwnedFd> {
    Ok(open(
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}
