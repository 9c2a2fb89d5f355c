//! Applies sandbox set-ups on the kernel that runs the tests.
#![expect(
    unsafe_code,
    reason = "probes that run before main, and system calls without a safe wrapper"
)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a panic is how a test fails, and probes print their results"
)]

mod guarded;
mod launched;
mod views;

use std::{
    ffi::{CStr, CString},
    io::Read,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
};

use exec_process::spawner::{Spawner, SupervisedChild};
use exec_spawn::{
    sandbox_setup::{
        FilterInstruction, MAX_MOUNT_SLOTS, MissingPath, MountSlot, MountStep, NameGuard,
        NamespaceSetup, NetworkNamespace, SandboxSetup, SetupStep, enter_sandbox,
    },
    spawner::{CommandSpec, CommandStdio, SpawnError, SpawnStage, SupervisorReport},
};

/// Opens `/dev/null`.
fn null() -> OwnedFd {
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).open("/dev/null");
    file.unwrap().into()
}

/// Makes a system call that has no safe wrapper.
fn call(number: i64, args: [usize; 3]) -> std::io::Result<i32> {
    let [a, b, c] = args;
    // SAFETY: every caller passes plain numbers, or pointers to memory it holds during the call.
    let result = unsafe { libc::syscall(number, a, b, c) };
    i32::try_from(result)
        .ok()
        .filter(|result| *result >= 0)
        .ok_or_else(std::io::Error::last_os_error)
}

/// Exits without running exit handlers.
fn exit(code: i32) -> ! {
    // SAFETY: no precondition.
    unsafe { libc::_exit(code) }
}

/// Exit status and output of a sandboxed shell.
#[derive(Debug, Eq, PartialEq)]
struct Outcome {
    status: i32,
    output: String,
}

impl Outcome {
    fn exited(code: i32, output: &str) -> Self {
        Self {
            status: code << 8,
            output: output.to_owned(),
        }
    }
}

/// Starts a shell in a sandbox, and returns its output pipe.
async fn start(
    spawner: &Spawner,
    setup: SandboxSetup,
    script: &str,
) -> Result<(SupervisedChild, OwnedFd), SpawnError> {
    let (ours, theirs) = std::io::pipe().unwrap();
    let (ours, theirs) = (OwnedFd::from(ours), OwnedFd::from(theirs));
    let spec = CommandSpec {
        program: "/bin/bash".into(),
        argv: ["bash", "-c", script].map(Into::into).to_vec(),
        env: vec![
            ("PATH".into(), "/usr/bin:/bin:/usr/sbin:/sbin".into()),
            ("LC_ALL".into(), "C".into()),
        ],
        cwd: "/".into(),
        sandbox_setup: Some(setup),
        ..CommandSpec::default()
    };
    let stdio = CommandStdio {
        fds: [null(), theirs.try_clone().unwrap(), theirs],
        terminal: false,
    };
    Ok((spawner.spawn(spec, stdio).await?, ours))
}

/// Runs a shell in a sandbox.
async fn run(setup: SandboxSetup, script: &str) -> Outcome {
    let spawner = Spawner::default();
    let (child, output) = start(&spawner, setup, script).await.unwrap();
    let mut text = String::new();
    std::fs::File::from(output)
        .read_to_string(&mut text)
        .unwrap();
    let Some(SupervisorReport::Exited(exit)) = child.report().await else {
        panic!("expected an exit report")
    };
    Outcome {
        status: exit.status,
        output: text,
    }
}

/// Returns the step that failed, and its error number.
async fn refusal(setup: SandboxSetup) -> (SetupStep, i32) {
    let spawner = Spawner::default();
    match start(&spawner, setup, "true").await {
        Err(SpawnError::SandboxSetup { part, source }) => (part, source.raw_os_error().unwrap()),
        other => panic!("expected a failed set-up: {other:?}"),
    }
}

/// User, mount, pid and IPC namespaces, and a view built by these steps.
fn namespaces(steps: Vec<MountStep>) -> SandboxSetup {
    SandboxSetup {
        namespaces: Some(NamespaceSetup {
            user: true,
            processes: true,
            network: None,
            steps,
        }),
        ..SandboxSetup::default()
    }
}

/// A read-only view with its own procfs and the usual devices.
fn read_only() -> Vec<MountStep> {
    let (proc, dev) = (MountSlot(0), MountSlot(1));
    vec![
        MountStep::Copy {
            path: c"/dev".to_owned(),
            slot: dev,
            missing: MissingPath::Fail,
        },
        MountStep::Processes { slot: proc },
        MountStep::ReadOnlyView,
        MountStep::Attach {
            slot: dev,
            path: c"/dev".to_owned(),
        },
        MountStep::Attach {
            slot: proc,
            path: c"/proc".to_owned(),
        },
    ]
}

/// Wraps [`read_only`] steps so that a directory stays writable.
fn with_writable(steps: Vec<MountStep>, path: &Path) -> Vec<MountStep> {
    let slot = MountSlot(2);
    let path = c_path(path);
    let copy = MountStep::Copy {
        path: path.clone(),
        slot,
        missing: MissingPath::Fail,
    };
    let mut all = vec![copy];
    all.extend(steps);
    all.push(MountStep::Attach { slot, path });
    all
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

#[test]
fn encoding_round_trips() {
    let (path, slot) = (c"/some/where".to_owned(), MountSlot(7));
    let steps = vec![
        MountStep::Copy {
            path: path.clone(),
            slot,
            missing: MissingPath::Skip,
        },
        MountStep::ReadOnly { slot },
        MountStep::ReadOnlyView,
        MountStep::Memory {
            slot,
            mode: 0o1777,
            bytes: u64::MAX,
        },
        MountStep::Processes { slot },
        MountStep::Terminals { slot },
        MountStep::Directory {
            slot,
            path: path.clone(),
            mode: 0o755,
        },
        MountStep::File {
            slot,
            path: path.clone(),
            mode: 0o600,
        },
        MountStep::Link {
            slot,
            path: path.clone(),
            target: c"x".to_owned(),
        },
        MountStep::Attach {
            slot,
            path: path.clone(),
        },
        MountStep::Cover {
            slot,
            entry: c"e".to_owned(),
            path: path.clone(),
        },
        MountStep::Protect { path: path.clone() },
        MountStep::Pin { path: path.clone() },
        MountStep::Root { slot },
    ];
    let setup = SandboxSetup {
        namespaces: Some(NamespaceSetup {
            user: true,
            processes: false,
            network: Some(NetworkNamespace {
                listen: vec![1, 65535],
                listener_socket: Some(null()),
            }),
            steps,
        }),
        landlock: Some(null()),
        filter: vec![FilterInstruction {
            code: 6,
            if_true: 1,
            if_false: 2,
            k: 0x7fff_0000,
        }],
        guards: vec![NameGuard {
            directory: path,
            names: vec![c".git".to_owned(), c".codex".to_owned()],
        }],
    };
    let bytes = setup.encode();
    let descriptors = || vec![null(), null()];
    assert_eq!(setup.descriptors().len(), 2);
    let decoded = SandboxSetup::decode(&bytes, descriptors()).unwrap();
    assert_eq!(decoded.encode(), bytes);
    assert_eq!(decoded.guards, setup.guards);
    assert_eq!(decoded.filter, setup.filter);
    let steps = |setup: &SandboxSetup| setup.namespaces.as_ref().unwrap().steps.clone();
    assert_eq!(steps(&decoded), steps(&setup));
    assert!(SandboxSetup::decode(&bytes, Vec::new()).is_none());
    // Truncation anywhere but between two steps is noticed, and never panics.
    let complete = (0..bytes.len())
        .filter(|end| SandboxSetup::decode(&bytes[..*end], descriptors()).is_some())
        .count();
    assert_eq!(complete, steps(&setup).len());
}
