//! Arguments and results of a probe.

use std::{
    ffi::{CString, OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    str::FromStr,
};

/// One operation to try.
pub(crate) type Probe = fn(&ProbeArgs<'_>) -> ProbeResult;

/// Text to print, or the reason for a failure.
pub(crate) type ProbeResult = Result<String, ProbeFailure>;

/// Reason for a failed probe.
#[derive(Debug)]
pub(crate) enum ProbeFailure {
    /// An argument is missing or invalid.
    Usage,
    /// The kernel refused the operation.
    Refused(io::Error),
}

impl From<io::Error> for ProbeFailure {
    fn from(error: io::Error) -> Self {
        Self::Refused(error)
    }
}

/// Arguments of a probe.
#[derive(Debug)]
pub(crate) struct ProbeArgs<'a>(&'a [OsString]);

impl<'a> ProbeArgs<'a> {
    pub(crate) fn new(words: &'a [OsString]) -> Self {
        Self(words)
    }

    /// Returns an argument unchanged.
    pub(crate) fn word(&self, index: usize) -> Result<&'a OsStr, ProbeFailure> {
        let word = self.0.get(index).ok_or(ProbeFailure::Usage)?;
        Ok(word)
    }

    /// Returns an argument that is a path.
    pub(crate) fn path(&self, index: usize) -> Result<&'a Path, ProbeFailure> {
        Ok(Path::new(self.word(index)?))
    }

    /// Returns an argument as a C string.
    pub(crate) fn text(&self, index: usize) -> Result<CString, ProbeFailure> {
        CString::new(self.word(index)?.as_bytes()).map_err(|_| ProbeFailure::Usage)
    }

    /// Returns an argument that is a number.
    pub(crate) fn number<T: FromStr>(&self, index: usize) -> Result<T, ProbeFailure> {
        let word = self.word(index)?.to_str().ok_or(ProbeFailure::Usage)?;
        word.parse().map_err(|_| ProbeFailure::Usage)
    }
}

/// Returns the text for a successful operation.
pub(crate) fn ok<T>(_: T) -> String {
    "ok".to_owned()
}

/// Maps the result of a call with deliberately invalid arguments: the errors in `nonsense` mean
/// that the kernel checked the arguments, so it had permitted the call itself.
pub(crate) fn passed_permission_check<T>(result: io::Result<T>, nonsense: &[i32]) -> ProbeResult {
    match result {
        Ok(_) => Ok("ok".to_owned()),
        Err(error) if error.raw_os_error().is_some_and(|e| nonsense.contains(&e)) => {
            Ok("ok".to_owned())
        }
        Err(error) => Err(error.into()),
    }
}

/// Describes a result in one word.
pub(crate) fn describe_outcome<T>(result: &io::Result<T>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("refused {}", errno_name(error)),
    }
}

/// Returns the symbolic name of an errno.
pub(crate) fn errno_name(error: &io::Error) -> String {
    let Some(number) = error.raw_os_error() else {
        return error.to_string();
    };
    let name = NAMES.iter().find(|(candidate, _)| *candidate == number);
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
