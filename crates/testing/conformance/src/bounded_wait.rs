//! Waits that fail the case after one common timeout, and the outcome that a case expects.

use std::fmt::Debug;

use exec_env::filesystem::{FileError, FileFuture};
pub(crate) use exec_test_support::bounded_wait::within;
use exec_wire::error::ErrorCode;

/// Waits for an operation that must succeed.
#[track_caller]
pub(crate) fn done<T>(operation: FileFuture<T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    let operation = within("file operation completes", operation);
    async move {
        match operation.await {
            Ok(outcome) => outcome,
            Err(error) => panic!("expected success, at {caller}: {error:?}"),
        }
    }
}

/// Waits for an operation that must fail with `NotFound`, and returns the message.
#[track_caller]
pub(crate) fn not_found<T: Debug>(operation: FileFuture<T>) -> impl Future<Output = String> {
    fails(operation, |error| matches!(error, FileError::NotFound(_)))
}

/// Waits for an operation that must fail with `Invalid`, and returns the message.
#[track_caller]
pub(crate) fn invalid<T: Debug>(operation: FileFuture<T>) -> impl Future<Output = String> {
    fails(operation, |error| matches!(error, FileError::Invalid(_)))
}

/// Waits for an operation that must fail with `Refused`, and returns the message.
#[track_caller]
pub(crate) fn refused<T: Debug>(operation: FileFuture<T>) -> impl Future<Output = String> {
    fails(operation, |error| matches!(error, FileError::Refused(_)))
}

/// Waits for an operation that must fail with `Host`, and returns the message.
#[track_caller]
pub(crate) fn host_fails<T: Debug>(operation: FileFuture<T>) -> impl Future<Output = String> {
    fails(operation, |error| matches!(error, FileError::Host(_)))
}

/// Waits for an operation that must fail with `Invalid` or `Host`, depending on the host.
#[track_caller]
pub(crate) fn invalid_or_host_fails<T: Debug>(
    operation: FileFuture<T>,
) -> impl Future<Output = String> {
    fails(operation, |error| {
        matches!(error, FileError::Invalid(_) | FileError::Host(_))
    })
}

/// Waits for an operation whose method the peer must not know.
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
    let operation = within("file operation completes", operation);
    async move {
        match operation.await {
            Err(error) if expected(&error) => error.to_string(),
            Err(error) => panic!("expected another failure, at {caller}: {error:?}"),
            Ok(outcome) => panic!("expected a failure, at {caller}: {outcome:?}"),
        }
    }
}
