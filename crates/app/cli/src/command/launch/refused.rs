//! Why a command was not started, for a person.
//!
//! The wire has one code for all that the system refuses, so what it was is read from the text, as this
//! server and the stock one write it. An unknown text is shown as it is.

use exec_env::backend::StartError;
use exec_wire::error::ErrorCode;

use crate::command::{
    failure::{Failure, FailureKind},
    place::Place,
};

/// Tells a person.
pub(super) fn refused(error: StartError, place: &Place) -> Failure {
    match error {
        StartError::Remote(error) => explained(
            &error.message,
            error.code == ErrorCode::INTERNAL,
            &place.name,
        ),
        StartError::Spawn { context, source } => {
            explained(&format!("{context}: {source}"), true, &place.name)
        }
        StartError::EmptyArgv | StartError::EmptyProgram => {
            Failure::new(FailureKind::Usage, "the command has no name")
        }
        StartError::Cwd(error) => Failure::new(FailureKind::Usage, error),
        StartError::Disconnected(gone) => Failure::new(FailureKind::Lost, gone)
            .next("whether the command was started is not known; the server ends it soon if so"),
        StartError::Refused { .. } | StartError::Cancelled | _ => {
            explained(&error.to_string(), false, &place.name)
        }
    }
}

/// Numbers of the system's reasons, on Linux and macOS.
const NO_ENTRY: &str = "(os error 2)";
const NOT_EXECUTABLE: [&str; 3] = ["(os error 13)", "(os error 8)", "(os error 21)"];

fn explained(text: &str, by_host: bool, place: &str) -> Failure {
    let failure = |kind| Failure::new(kind, text);
    if text.starts_with("sandbox") {
        return failure(FailureKind::Failed)
            .next("`exec-server doctor`, run there, tells what can be enforced");
    }
    if text.starts_with("process ") && text.ends_with(" already exists") {
        return failure(FailureKind::Usage).next("--name chooses another id");
    }
    if !by_host {
        return failure(FailureKind::Failed);
    }
    if text.starts_with("cannot enter directory") {
        return failure(FailureKind::NotFound).next("-C chooses another directory");
    }
    if text.ends_with(NO_ENTRY) {
        return failure(FailureKind::CommandNotFound)
            .next(format_args!("check the name, and PATH in `{place}`"));
    }
    if NOT_EXECUTABLE.iter().any(|end| text.ends_with(end)) {
        return failure(FailureKind::NotExecutable)
            .next("name its interpreter first, or make it executable");
    }
    failure(FailureKind::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_told_from_a_missing_directory_and_from_one_that_cannot_be_executed() {
        let kind = |text: &str| explained(text, true, "local").kind;
        let missing = "No such file or directory (os error 2)";
        assert_eq!(
            kind(&format!("cannot run `nope`: {missing}")),
            FailureKind::CommandNotFound
        );
        assert_eq!(
            kind(&format!("cannot enter directory `/nope`: {missing}")),
            FailureKind::NotFound
        );
        for reason in [
            "Permission denied (os error 13)",
            "Exec format error (os error 8)",
        ] {
            assert_eq!(
                kind(&format!("cannot run `/etc/passwd`: {reason}")),
                FailureKind::NotExecutable,
            );
        }
        assert_eq!(
            kind("cannot create a process: out of memory"),
            FailureKind::Failed
        );
    }

    #[test]
    fn what_the_server_refuses_is_not_taken_for_the_system() {
        let kind = |text| explained(text, false, "local").kind;
        assert_eq!(kind("env: A=(os error 2)"), FailureKind::Failed);
        assert_eq!(kind("process a already exists"), FailureKind::Usage);
    }
}
