//! Starts that must fail without side effects.

use std::{io::ErrorKind, path::Path};

use exec_env::environment::{Command, ProcessIo, StartError, StdinMode};
use exec_wire::{error::ErrorCode, process::TerminalSize};

use crate::{
    difference::Difference,
    scratch_dir::ScratchDir,
    subject::{ProcessIdScope, StartErrorForm, Subject, on_terminal, uri},
};

/// All stdio kinds; the outcome must be the same for each.
const KINDS: [ProcessIo; 3] = [
    ProcessIo::Pipes {
        stdin: StdinMode::Null,
    },
    ProcessIo::Pipes {
        stdin: StdinMode::Piped,
    },
    ProcessIo::Terminal(TerminalSize { rows: 24, cols: 80 }),
];

/// Starts `command` with every stdio kind. The host must refuse each start with the error `kind`
/// and name `culprit`, and the id must be free afterwards.
async fn assert_host_refuses(subject: &Subject, command: Command, kind: ErrorKind, culprit: &str) {
    for io in KINDS {
        let error = subject
            .refused(Command {
                io,
                ..command.clone()
            })
            .await;
        let text = match (subject.capabilities.refusals, error) {
            (StartErrorForm::Errno, StartError::Spawn { context, source }) => {
                assert_eq!(source.kind(), kind, "{context}: {source}");
                context
            }
            (StartErrorForm::Rpc, StartError::Remote(error)) => {
                assert_eq!(error.code, ErrorCode::INTERNAL, "{error}");
                error.message
            }
            (_, other) => panic!("expected the host to refuse: {other:?}"),
        };
        let free =
            matches!(io, ProcessIo::Terminal(_)) && subject.differs(Difference::ErrorsNameNothing);
        if !culprit.is_empty() && !free {
            subject.assert_names(&text, culprit);
        }
    }
    let free = Command {
        process_id: command.process_id,
        ..subject.sh("exit 0", &[])
    };
    assert_eq!(subject.start(free).await.finish().await.code(), 0);
}

pub async fn missing_program_is_refused(subject: &Subject) {
    for program in ["/nowhere/program", "no-such-program"] {
        assert_host_refuses(
            subject,
            subject.command(&[program]),
            ErrorKind::NotFound,
            program,
        )
        .await;
    }
}

pub async fn non_executable_program_is_refused(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("text");
    std::fs::write(&path, "text").unwrap();
    let program = path.to_str().unwrap();
    let kind = ErrorKind::PermissionDenied;
    assert_host_refuses(subject, subject.command(&[program]), kind, program).await;
    assert_host_refuses(subject, subject.command(&["/"]), kind, "`/`").await;
}

pub async fn missing_working_directory_is_refused(subject: &Subject) {
    let scratch = ScratchDir::new();
    let nowhere = scratch.path("nowhere");
    let command = Command {
        cwd: uri(&nowhere),
        ..subject.sh("exit 0", &[])
    };
    let culprit = nowhere.to_str().unwrap();
    if subject.differs(Difference::TerminalsStartAnywhere) {
        for io in [KINDS[0], KINDS[1]] {
            let command = Command {
                io,
                ..command.clone()
            };
            let error = subject.refused(command).await;
            subject.assert_names(&error.to_string(), culprit);
        }
        let command = on_terminal(command, 24, 80);
        return assert_eq!(subject.start(command).await.finish().await.code(), 0);
    }
    assert_host_refuses(subject, command, ErrorKind::NotFound, culprit).await;
}

pub async fn nul_byte_in_a_command_is_refused(subject: &Subject) {
    let kind = ErrorKind::InvalidInput;
    assert_host_refuses(subject, subject.sh("exit 0", &["a\0b"]), kind, "").await;
    assert_host_refuses(subject, subject.command(&["/bin/sh\0"]), kind, "").await;
    let mut command = subject.sh("exit 0", &[]);
    command.env.insert("NAME".to_owned(), "a\0b".to_owned());
    assert_host_refuses(subject, command, kind, "").await;
}

pub async fn command_without_a_program_is_refused(subject: &Subject) {
    let error = subject.refused(subject.command(&[])).await;
    assert!(matches!(error, StartError::EmptyArgv), "{error:?}");
    let error = subject.refused(subject.command(&[""])).await;
    assert!(matches!(error, StartError::EmptyProgram), "{error:?}");
}

pub async fn working_directory_of_another_host_is_refused(subject: &Subject) {
    let cwd = "file:///C:/Users".parse().unwrap();
    let error = subject
        .refused(Command {
            cwd,
            ..subject.sh("exit 0", &[])
        })
        .await;
    match (subject.capabilities.refusals, error) {
        (StartErrorForm::Errno, StartError::Cwd(_)) => {}
        (StartErrorForm::Rpc, StartError::Remote(error)) => {
            assert_eq!(error.code, ErrorCode::INVALID_PARAMS);
        }
        (_, other) => panic!("expected a refusal: {other:?}"),
    }
}

pub async fn relative_program_is_resolved_from_the_working_directory(subject: &Subject) {
    let cwd = uri(Path::new("/bin"));
    let command = Command {
        cwd,
        ..subject.command(&["./sh", "-c", "exit 6"])
    };
    assert_eq!(subject.start(command).await.finish().await.code(), 6);
}

pub async fn id_in_use_is_refused_where_ids_are_tracked(subject: &Subject) {
    let command = subject.cat("still here".len());
    let first = subject.start(command.clone()).await;
    match subject.capabilities.ids {
        ProcessIdScope::Free => drop(subject.start(command).await),
        ProcessIdScope::Unique => {
            let error = subject.refused(command).await;
            let refused = matches!(
                &error,
                StartError::Refused {
                    field: "processId",
                    ..
                }
            ) || matches!(&error, StartError::Remote(e) if e.code == ErrorCode::INVALID_REQUEST);
            assert!(refused, "{error:?}");
        }
    }
    first.write(b"still here").await;
    first.close_stdin().await;
    assert_eq!(first.finish().await.text(), "still here");
}
