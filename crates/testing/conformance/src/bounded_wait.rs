//! Waits that fail the case after one common timeout, and the outcome that a case expects.

use std::{fmt::Debug, time::Duration};

use exec_env::filesystem::{FileError, FileFuture};
use exec_wire::error::ErrorCode;
use tokio::time::timeout;

/// How long anything may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Waits for something that must happen.
#[track_caller]
pub(crate) fn within<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match timeout(LIMIT, future).await {
            Ok(output) => output,
            Err(_) => panic!("{what}: did not happen within {LIMIT:?}, at {caller}"),
        }
    }
}

/// Waits for something that must be done.
#[track_caller]
pub(crate) fn done<T>(operation: FileFuture<T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    let operation = within("an operation on files is answered", operation);
    async move {
        match operation.await {
            Ok(outcome) => outcome,
            Err(error) => panic!("expected success, at {caller}: {error:?}"),
        }
    }
}

/// Waits for something that must find nothing. Returns what it says.
#[track_caller]
pub(crate) fn not_found<T: Debug>(operation: FileFuture<T>) -> impl Future<Output = String> {
    fails(operation, |error| matches!(error, FileError::NotFound(_)))
}

/// Waits for something that may not be done. Returns what it says.
#[track_caller]
pub(crate) fn invalid<T: Debug>(operation: FileFuture<T>) -> impl Future<Output = String> {
    fails(operation, |error| matches!(error, FileError::Invalid(_)))
}

/// Waits for something that cannot be asked for. Returns what it says.
#[track_caller]
pub(crate) fn refused<T: Debug>(operation: FileFuture<T>) -> impl Future<Output = String> {
    fails(operation, |error| matches!(error, FileError::Refused(_)))
}

/// Waits for something that the operating system must fail. Returns what it says.
#[track_caller]
pub(crate) fn host_fails<T: Debug>(operation: FileFuture<T>) -> impl Future<Output = String> {
    fails(operation, |error| matches!(error, FileError::Host(_)))
}

/// Waits for something that must fail in one way or the other: which one is the host's choice.
#[track_caller]
pub(crate) fn invalid_or_host_fails<T: Debug>(
    operation: FileFuture<T>,
) -> impl Future<Output = String> {
    fails(operation, |error| {
        matches!(error, FileError::Invalid(_) | FileError::Host(_))
    })
}

/// Waits for something that the peer does not know at all.
#[track_caller]
pub(crate) fn unknown<T: Debug>(operation: FileFuture<T>) -> impl Future<Output = String> {
    fails(
        operation,
        |error| matches!(error, FileError::Remote(error) if error.code == ErrorCode::METHOD_NOT_FOUND),
    )
}

#[track_caller]
fn fails<T: Debug>(
    operation: FileFuture<T>,
    expected: impl FnOnce(&FileError) -> bool,
) -> impl Future<Output = String> {
    let caller = std::panic::Location::caller();
    let operation = within("an operation on files is answered", operation);
    async move {
        match operation.await {
            Err(error) if expected(&error) => error.to_string(),
            Err(error) => panic!("expected another failure, at {caller}: {error:?}"),
            Ok(outcome) => panic!("expected a failure, at {caller}: {outcome:?}"),
        }
    }
}
