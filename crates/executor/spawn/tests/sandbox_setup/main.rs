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

use exec_process::spawner::{Child, Spawner};
use exec_spawn::{
    enclosure::{
        Enclosure, Guard, Instruction, MAX_SLOTS, Missing, Namespaces, NetworkNamespace, SetupStep,
        Slot, Step, enter,
    },
    spawner::{SpawnError, Spec, Stage, SupervisorReport},
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
    enclosure: Enclosure,
    script: &str,
) -> Result<(Child, OwnedFd), SpawnError> {
    let (ours, theirs) = std::io::pipe().unwrap();
    let (ours, theirs) = (OwnedFd::from(ours), OwnedFd::from(theirs));
    let spec = Spec {
        candidates: vec![c"/bin/bash".to_owned()],
        argv: [c"bash", c"-c", &CString::new(script).unwrap()]
            .map(CStr::to_owned)
            .to_vec(),
        env: vec![
            c"PATH=/usr/bin:/bin:/usr/sbin:/sbin".to_owned(),
            c"LC_ALL=C".to_owned(),
        ],
        cwd: c"/".to_owned(),
        stdin: null(),
        stderr: theirs.try_clone().unwrap(),
        stdout: theirs,
        terminal: false,
        extra: Vec::new(),
        limits: Vec::new(),
        enclosure: Some(enclosure),
    };
    Ok((spawner.spawn(spec).await?, ours))
}

/// Runs a shell in a sandbox.
async fn run(enclosure: Enclosure, script: &str) -> Outcome {
    let spawner = Spawner::default();
    let (child, output) = start(&spawner, enclosure, script).await.unwrap();
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
async fn refusal(enclosure: Enclosure) -> (SetupStep, i32) {
    let spawner = Spawner::default();
    match start(&spawner, enclosure, "true").await {
        Err(SpawnError::Enclosure { part, source }) => (part, source.raw_os_error().unwrap()),
        other => panic!("expected a failed set-up: {other:?}"),
    }
}

/// User, mount, pid and IPC namespaces, and a view built by these steps.
fn namespaces(steps: Vec<Step>) -> Enclosure {
    Enclosure {
        namespaces: Some(Namespaces {
            user: true,
            processes: true,
            network: None,
            steps,
        }),
        ..Enclosure::default()
    }
}

/// A read-only view with its own procfs and the usual devices.
fn read_only() -> Vec<Step> {
    let (proc, dev) = (Slot(0), Slot(1));
    vec![
        Step::Copy {
            path: c"/dev".to_owned(),
            slot: dev,
            missing: Missing::Fail,
        },
        Step::Processes { slot: proc },
        Step::ReadOnlyView,
        Step::Attach {
            slot: dev,
            path: c"/dev".to_owned(),
        },
        Step::Attach {
            slot: proc,
            path: c"/proc".to_owned(),
        },
    ]
}

/// Wraps [`read_only`] steps so that a directory stays writable.
fn with_writable(steps: Vec<Step>, path: &Path) -> Vec<Step> {
    let slot = Slot(2);
    let path = c_path(path);
    let copy = Step::Copy {
        path: path.clone(),
        slot,
        missing: Missing::Fail,
    };
    let mut all = vec![copy];
    all.extend(steps);
    all.push(Step::Attach { slot, path });
    all
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

#[test]
fn encoding_round_trips() {
    let (path, slot) = (c"/some/where".to_owned(), Slot(7));
    let steps = vec![
        Step::Copy {
            path: path.clone(),
            slot,
            missing: Missing::Skip,
        },
        Step::ReadOnly { slot },
        Step::ReadOnlyView,
        Step::Memory {
            slot,
            mode: 0o1777,
            bytes: u64::MAX,
        },
        Step::Processes { slot },
        Step::Terminals { slot },
        Step::Directory {
            slot,
            path: path.clone(),
            mode: 0o755,
        },
        Step::File {
            slot,
            path: path.clone(),
            mode: 0o600,
        },
        Step::Link {
            slot,
            path: path.clone(),
            target: c"x".to_owned(),
        },
        Step::Attach {
            slot,
            path: path.clone(),
        },
        Step::Cover {
            slot,
            entry: c"e".to_owned(),
            path: path.clone(),
        },
        Step::Protect { path: path.clone() },
        Step::Pin { path: path.clone() },
        Step::Root { slot },
    ];
    let enclosure = Enclosure {
        namespaces: Some(Namespaces {
            user: true,
            processes: false,
            network: Some(NetworkNamespace {
                listen: vec![1, 65535],
                door: Some(null()),
            }),
            steps,
        }),
        landlock: Some(null()),
        filter: vec![Instruction {
            code: 6,
            if_true: 1,
            if_false: 2,
            k: 0x7fff_0000,
        }],
        guards: vec![Guard {
            directory: path,
            names: vec![c".git".to_owned(), c".codex".to_owned()],
        }],
    };
    let bytes = enclosure.encode();
    let descriptors = || vec![null(), null()];
    assert_eq!(enclosure.descriptors().len(), 2);
    let decoded = Enclosure::decode(&bytes, descriptors()).unwrap();
    assert_eq!(decoded.encode(), bytes);
    assert_eq!(decoded.guards, enclosure.guards);
    assert_eq!(decoded.filter, enclosure.filter);
    let steps = |enclosure: &Enclosure| enclosure.namespaces.as_ref().unwrap().steps.clone();
    assert_eq!(steps(&decoded), steps(&enclosure));
    assert!(Enclosure::decode(&bytes, Vec::new()).is_none());
    // Truncation anywhere but between two steps is noticed, and never panics.
    let whole = (0..bytes.len())
        .filter(|end| Enclosure::decode(&bytes[..*end], descriptors()).is_some())
        .count();
    assert_eq!(whole, steps(&enclosure).len());
}
