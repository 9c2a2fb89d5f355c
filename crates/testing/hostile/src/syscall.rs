//! System calls by number.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    sync::atomic::AtomicU8,
};

/// Argument of a system call. Borrowed memory lives as long as the call.
#[derive(Debug)]
pub(crate) enum Arg<'a> {
    Number(i64),
    Text(&'a CStr),
    Bytes(&'a [u8]),
    Buffer(&'a mut [u8]),
    /// Memory that other threads change concurrently.
    Shared(&'a [AtomicU8]),
}

impl Arg<'_> {
    fn word(&mut self) -> i64 {
        let address = match self {
            Self::Number(number) => return *number,
            Self::Text(text) => text.as_ptr().expose_provenance(),
            Self::Bytes(bytes) => bytes.as_ptr().expose_provenance(),
            Self::Buffer(buffer) => buffer.as_mut_ptr().expose_provenance(),
            Self::Shared(bytes) => bytes.as_ptr().expose_provenance(),
        };
        address.cast_signed() as i64
    }
}

macro_rules! from_number {
    ($($from:ty)+) => { $(
        impl From<$from> for Arg<'_> {
            fn from(number: $from) -> Self {
                Self::Number(number.into())
            }
        }
    )+ };
}

from_number!(i32 u32 i64);

impl From<u64> for Arg<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number.cast_signed())
    }
}

impl From<usize> for Arg<'_> {
    fn from(number: usize) -> Self {
        Self::Number(number.cast_signed() as i64)
    }
}

impl<'a> From<&'a CStr> for Arg<'a> {
    fn from(text: &'a CStr) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u8]> for Arg<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a mut [u8]> for Arg<'a> {
    fn from(buffer: &'a mut [u8]) -> Self {
        Self::Buffer(buffer)
    }
}

impl<'a> From<&'a [AtomicU8]> for Arg<'a> {
    fn from(bytes: &'a [AtomicU8]) -> Self {
        Self::Shared(bytes)
    }
}

impl<'a> From<&'a OwnedFd> for Arg<'a> {
    fn from(fd: &'a OwnedFd) -> Self {
        Self::Number(fd.as_fd().as_raw_fd().into())
    }
}

/// Makes a system call with up to six arguments; missing ones are 0.
macro_rules! call {
    ($number:expr $(, $arg:expr)* $(,)?) => {
        $crate::syscall::enter($number, &mut [$($crate::syscall::Arg::from($arg)),*])
    };
}

pub(crate) use call;

/// Makes a system call. Must not be used for calls that map, unmap or free memory.
pub(crate) fn enter(number: i64, args: &mut [Arg<'_>]) -> io::Result<i64> {
    let mut words = [0; 6];
    for (word, arg) in words.iter_mut().zip(args) {
        *word = arg.word();
    }
    let [a, b, c, d, e, f] = words;
    // SAFETY: the kernel accesses only the memory that the arguments borrow, with the length given
    // for each, and these calls do not change mappings of this process.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Owns the descriptor that a system call returned.
pub(crate) fn owned(result: io::Result<i64>) -> io::Result<OwnedFd> {
    let number = i32::try_from(result?).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the kernel has just opened it for this call, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Opens a path.
pub(crate) fn open(path: &CStr, flags: i32) -> io::Result<OwnedFd> {
    let flags = flags | libc::O_CLOEXEC;
    owned(call!(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0o644))
}

/// Runs a function in a forked child and returns its `wait4` status.
pub(crate) fn in_child(child: impl FnOnce() -> i32) -> io::Result<i32> {
    // SAFETY: this process has a single thread here, so the child may run any code.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = child();
            // SAFETY: exits the child without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        pid => wait(pid.into()),
    }
}

/// Waits for a child to exit.
pub(crate) fn wait(pid: i64) -> io::Result<i32> {
    let mut status = [0; 4];
    call!(libc::SYS_wait4, pid, &mut status[..], 0, 0)?;
    Ok(i32::from_ne_bytes(status))
}

/// Describes the status of a child that exits with an errno or is killed.
pub(crate) fn describe_child_status(status: i32) -> io::Result<String> {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        return Ok(match signal {
            libc::SIGSYS => "refused SIGSYS".to_owned(),
            libc::SIGSEGV => "refused SIGSEGV".to_owned(),
            other => format!("refused signal {other}"),
        });
    }
    match libc::WEXITSTATUS(status) {
        0 => Ok("ok".to_owned()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Returns the errno as a child's exit code.
pub(crate) fn errno<T>(result: io::Result<T>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
    }
}
