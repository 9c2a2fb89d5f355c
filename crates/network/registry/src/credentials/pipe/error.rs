//! What is wrong with what the parent writes.

use std::{io, time::Duration};

/// Why a credential pipe cannot be used, or not any more. No line is repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipeError {
    /// Caller: no line came in time.
    #[error("no executor credential within {0:?}")]
    Late(Duration),
    /// Nobody: the pipe ended before the first line. There is nothing to be done, and nothing is wrong.
    #[error("executor credential pipe closed before the first credential")]
    Closed,
    /// Caller: a line is longer than any credential.
    #[error("executor credential frame is longer than {0} bytes")]
    TooLong(usize),
    /// Caller: a line is no credential.
    #[error("invalid executor credential frame")]
    Invalid,
    /// Caller: the credential had expired when it came.
    #[error("executor credential had expired when it came")]
    Expired,
    /// Caller: the credential is for another environment.
    #[error("executor credential is for another environment")]
    OtherEnvironment,
    /// Host: the pipe cannot be read.
    #[error("executor credentials cannot be read")]
    Read(#[source] io::Error),
    /// Host: whoever read the pipe is gone.
    #[error("executor credentials are not read any more")]
    Gone,
}
