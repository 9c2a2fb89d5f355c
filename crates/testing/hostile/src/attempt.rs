//! What a probe is given, and what it tells.

use std::{
    ffi::{CString, OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    str::FromStr,
};

/// One thing to try.
pub(crate) type Probe = fn(&Args<'_>) -> Attempt;

/// What to print, or why it was not possible.
pub(crate) type Attempt = Result<String, Failure>;

/// Why there is nothing to print but that.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An argument is missing or is not what it should be.
    Usage,
    /// The kernel refused.
    Refused(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Refused(error)
    }
}

/// The arguments of a probe.
#[derive(Debug)]
pub(crate) struct Args<'a>(&'a [OsString]);

impl<'a> Args<'a> {
    pub(crate) fn new(words: &'a [OsString]) -> Self {
        Self(words)
    }

    /// Returns an argument as it is.
    pub(crate) fn word(&self, index: usize) -> Result<&'a OsStr, Failure> {
        let word = self.0.get(index).ok_or(Failure::Usage)?;
        Ok(word)
    }

    /// Returns an argument that is a path.
    pub(crate) fn path(&self, index: usize) -> Result<&'a Path, Failure> {
        Ok(Path::new(self.word(index)?))
    }

    /// Returns an argument as the kernel takes a path.
    pub(crate) fn text(&self, index: usize) -> Result<CString, Failure> {
        CString::new(self.word(index)?.as_bytes()).map_err(|_| Failure::Usage)
    }

    /// Returns an argument that is a number.
    pub(crate) fn number<T: FromStr>(&self, index: usize) -> Result<T, Failure> {
        let word = self.word(index)?.to_str().ok_or(Failure::Usage)?;
        word.parse().map_err(|_| Failure::Usage)
    }
}

/// What is printed when something worked.
pub(crate) fn ok<T>(_: T) -> String {
    "ok".to_owned()
}

/// Calls that were given nonsense on purpose: these errors mean that the kernel looked at it, and so
/// had no objection to the call itself.
pub(crate) fn reached<T>(result: io::Result<T>, nonsense: &[i32]) -> Attempt {
    match result {
        Ok(_) => Ok("ok".to_owned()),
        Err(error) if error.raw_os_error().is_some_and(|e| nonsense.contains(&e)) => {
            Ok("ok".to_owned())
        }
        Err(error) => Err(error.into()),
    }
}

/// Tells in one word how something went.
pub(crate) fn verdict<T>(result: &io::Result<T>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("refused {}", name_of(error)),
    }
}

/// Returns the kernel's name of an error.
pub(crate) fn name_of(error: &io::Error) -> String {
    let Some(number) = error.raw_os_error() else {
        return error.to_string();
    };
    let name = NAMES.iter().find(|(known, _)| *known == number);
    name.map_or_else(|| format!("E{number}"), |(_, name)| (*name).to_owned())
}

macro_rules! names {
    ($($name:ident)+) => { &[$((libc::$name, stringify!($name))),+] };
}

const NAMES: &[(i32, &str)] = names!(
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
    ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
    ENOSPC ESPIPE EROFS EMLINK EPIPE ERANGE ENAMETOOLONG ENOSYS ENOTEMPTY ELOOP EOVERFLOW EUSERS
    ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT
    EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH
    ECONNABORTED ECONNRESET ENOBUFS ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTUNREACH ESTALE ENOKEY
);
