//! Why an operation on a journal failed.

use std::io;

use exec_wire::id::OutputSeq;
use rustix::io::Errno;
use serde::Serialize;

use crate::record_id::RecordId;

/// Why an operation on a journal failed. The journal stays usable in all of these cases.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Host: the disk or quota is full. Output that was not moved is still in its pipe; try again
    /// later.
    #[error("no space for the journal: free disk space, or raise the quota or file size limit")]
    Full(#[source] io::Error),
    /// Caller: the oldest output is protected and the journal is at its cap. Pause the process
    /// until its output is acknowledged.
    #[error("journal is full of output that is not acknowledged")]
    Protected,
    /// Caller: the last chunk must be committed first.
    #[error("a chunk waits for its commit")]
    Uncommitted,
    /// Caller: no chunk was spliced.
    #[error("no chunk waits for a commit")]
    NothingPending,
    /// Caller: each sequence number is assigned once, in ascending order.
    #[error("sequence number {} does not follow {}", seq.0, last.0)]
    NotAscending {
        /// Sequence number of the commit.
        seq: OutputSeq,
        /// Highest number that is known.
        last: OutputSeq,
    },
    /// Caller: the journal was reopened without the descriptor of its input.
    #[error("input position was not handed over")]
    NoInput,
    /// Caller: the descriptor is not the input of this process.
    #[error("descriptor is not the input file of this process")]
    ForeignInput,
    /// Peer: the command closed its input.
    #[error("the command no longer reads its input")]
    ReaderGone,
    /// Host: a file does not have the expected content.
    #[error("`{file}` is damaged: {reason}")]
    Damaged {
        /// File name.
        file: &'static str,
        /// The problem, as a fragment.
        reason: String,
    },
    /// Host: another program made or changed the file.
    #[error("`{0}` is not a private regular file of this account: remove it or correct its mode")]
    NotPrivate(String),
    /// Caller: the value does not fit its limit.
    #[error("{name} exceeds {limit} bytes")]
    TooLarge {
        /// Value.
        name: &'static str,
        /// Limit in bytes.
        limit: usize,
    },
    /// Caller: the directory has as many records as it may have.
    #[error("state directory holds the maximum of {0} records")]
    TooManyRecords(usize),
    /// Caller: the record does not exist.
    #[error("no record `{0}`")]
    UnknownRecord(RecordId),
    /// Caller: the id cannot name a file.
    #[error("session id cannot name a file: use letters, digits and `-`")]
    InvalidSessionId,
    /// Host: an operation on a file failed.
    #[error("failed to {action}")]
    Io {
        /// Operation.
        action: &'static str,
        /// Cause.
        source: io::Error,
    },
}

impl JournalError {
    /// Classifies an error of the operation `action`.
    pub(crate) fn io(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| {
            if is_full(&source) {
                Self::Full(source)
            } else {
                Self::Io { action, source }
            }
        }
    }

    /// Classifies an error from opening or reading `file`.
    pub(crate) fn opening(file: &str) -> impl Fn(io::Error) -> Self {
        move |error| {
            if error.kind() == io::ErrorKind::PermissionDenied {
                Self::NotPrivate(file.to_owned())
            } else {
                Self::io("open a file of the journal")(error)
            }
        }
    }

    /// Returns whether there was no space.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full(_))
    }
}

/// Encodes a value as JSON, for the operation `action`. The limit has the name of the value and its
/// maximum bytes.
pub(crate) fn encode_json(
    value: &impl Serialize,
    action: &'static str,
    (name, limit): (&'static str, usize),
) -> Result<Vec<u8>, JournalError> {
    let text = serde_json::to_vec(value)
        .map_err(io::Error::from)
        .map_err(JournalError::io(action))?;
    match text.len() > limit {
        true => Err(JournalError::TooLarge { name, limit }),
        false => Ok(text),
    }
}

/// Returns whether the disk, a quota or the limit of a file's size was reached.
pub(crate) fn is_full(error: &io::Error) -> bool {
    [Errno::NOSPC, Errno::DQUOT, Errno::FBIG]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
