//! Guarded names, and processes that enter a sandbox themselves.

use std::{
    ffi::OsStr,
    os::{
        fd::FromRawFd,
        unix::{fs::PermissionsExt, net::UnixListener, process::CommandExt},
    },
    process::{Command, Output},
};

use super::*;

/// Landlock rights to create directories, files, sockets, pipes and links, and to move files.
const MAKE: u64 = 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12 | 1 << 13;

/// Returns a ruleset that forbids creating anything. `None`: this kernel has no Landlock.
pub(super) fn forbid_creation() -> Option<OwnedFd> {
    let handled = MAKE;
    let size = size_of_val(&handled);
    let args = [&raw const handled as usize, size, 0];
    let fd = call(libc::SYS_landlock_create_ruleset, args).ok()?;
    // SAFETY: the descriptor is new and owned by nothing else.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Notifies of `mkdir` and `bind`, and allows everything else.
fn notify_of_mkdir_and_bind() -> Vec<FilterInstruction> {
    let instruction = |code, if_true, k| FilterInstruction {
        code,
        if_true,
        if_false: 0,
        k,
    };
    let number = |number: i64| u32::try_from(number).unwrap();
    #[cfg(target_arch = "x86_64")]
    let other = libc::SYS_mkdir;
    #[cfg(not(target_arch = "x86_64"))]
    let other = libc::SYS_mkdirat;
    vec![
        instruction(0x20, 0, 0),
        instruction(0x15, 3, number(libc::SYS_bind)),
        instruction(0x15, 2, number(libc::SYS_mkdirat)),
        instruction(0x15, 1, number(other)),
        instruction(0x06, 0, libc::SECCOMP_RET_ALLOW),
        instruction(0x06, 0, libc::SECCOMP_RET_USER_NOTIF),
    ]
}

/// Returns a set-up in which `.git` cannot be created in a writable directory.
pub(super) fn guarding(path: &Path) -> SandboxSetup {
    let mut setup = namespaces(with_writable(read_only(), path));
    setup.filter = notify_of_mkdir_and_bind();
    setup.guards = vec![NameGuard {
        directory: c_path(path),
        names: vec![c".git".to_owned()],
    }];
    setup
}

#[tokio::test]
async fn guarded_name_cannot_be_created_but_others_can() {
    let Some(landlock) = forbid_creation() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let mut setup = guarding(&path);
    setup.landlock = Some(landlock);
    let script = format!(
        "cd {0}; mkdir other && mkdir {0}/other/.git && echo made; mkdir .git; \
         mkdir {0}/other/../.git; (sleep 0 &); echo x > file; exit 5",
        path.display()
    );
    let outcome = run(setup, &script).await;
    assert_eq!(outcome.status, 5 << 8, "{outcome:?}");
    assert!(outcome.output.starts_with("made\n"), "{outcome:?}");
    assert!(path.join("other/.git").is_dir());
    assert!(!path.join(".git").exists());
    assert!(
        !path.join("file").exists(),
        "nothing is made but by the broker"
    );
}

/// Name under which the test executable binds sockets.
const BINDER: &str = "exec-binding-probe";

/// Binds a socket to each argument, and prints the result.
extern "C" fn bind_all() {
    let mut arguments = std::env::args_os();
    if arguments.next().as_deref() != Some(OsStr::new(BINDER)) {
        return;
    }
    for path in arguments {
        // By a thread other than the first, which alone has the socket.
        let bound = std::thread::spawn(move || {
            let flags = usize::try_from(libc::CLONE_FILES).unwrap();
            call(libc::SYS_unshare, [flags, 0, 0]).unwrap();
            UnixListener::bind(path)?.local_addr()
        });
        match bound.join().unwrap() {
            Ok(address) => println!("{}", address.as_pathname().unwrap().display()),
            Err(error) => println!("{error}"),
        }
    }
    exit(0);
}

#[used]
// SAFETY: the section holds pointers to functions without arguments; the loader calls each once.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = bind_all;

/// Returns a script that binds sockets in a directory, to guarded and unguarded names.
pub(super) fn binding(path: &Path) -> String {
    let program = std::env::current_exe().unwrap();
    format!(
        "cd {0}; umask 027; mkdir dir; exec -a {BINDER} {1} {0}/one dir/two .git {0}/.git dir/.git",
        path.display(),
        program.display()
    )
}

/// Checks the results of `binding`.
#[track_caller]
pub(super) fn assert_bound(path: &Path, output: &str) {
    let refused = "Read-only file system (os error 30)";
    let one = path.join("one");
    let expected = [one.to_str().unwrap(), "dir/two", refused, refused, ".git"];
    assert_eq!(output.lines().collect::<Vec<_>>(), expected);
    for name in ["one", "dir/two", "dir/.git"] {
        let mode = std::fs::metadata(path.join(name)).unwrap().permissions();
        assert_eq!(mode.mode(), libc::S_IFSOCK | 0o750);
    }
    assert!(!path.join(".git").exists());
}

#[tokio::test]
async fn sockets_can_be_bound_except_to_guarded_names() {
    let Some(landlock) = forbid_creation() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let mut setup = guarding(&path);
    setup.landlock = Some(landlock);
    let outcome = run(setup, &binding(&path)).await;
    assert_bound(&path, &outcome.output);
}

#[tokio::test]
async fn descendants_of_guarded_command_live_until_the_tree_is_killed() {
    let Some(landlock) = forbid_creation() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut setup = guarding(&dir.path().canonicalize().unwrap());
    setup.landlock = Some(landlock);
    let spawner = Spawner::default();
    let script = "setsid sleep 1000 & echo ready; kill -9 $$";
    let (child, output) = start(&spawner, setup, script).await.unwrap();
    let Some(SupervisorReport::Exited(exit)) = child.report().await else {
        panic!("expected an exit report")
    };
    assert_eq!(exit.status, libc::SIGKILL);
    child.kill_tree();
    assert_eq!(child.report().await, None);
    let mut text = String::new();
    std::fs::File::from(output)
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "ready\n");
}

#[tokio::test]
async fn guarded_directory_must_exist() {
    let mut setup = guarding(Path::new("/usr"));
    let missing = NameGuard {
        directory: c"/nowhere".to_owned(),
        names: vec![c".git".to_owned()],
    };
    setup.guards.push(missing.clone());
    let spawner = Spawner::default();
    let error = start(&spawner, setup, "true").await;
    let Err(SpawnError::SandboxSetup { part, source }) = error else {
        panic!("expected a failed set-up: {error:?}")
    };
    assert_eq!(part, SetupStep::Guard(Some(missing)));
    assert_eq!(source.raw_os_error(), Some(libc::ENOENT));
}

/// Name under which the test executable enters a sandbox and runs a shell.
const PROBE_NAME: &str = "exec-enclosed-probe";

/// Enters the sandbox in the file named by the first argument, and runs a shell with the second.
fn probe() {
    let mut arguments = std::env::args_os();
    if arguments.next().as_deref() != Some(OsStr::new(PROBE_NAME)) {
        return;
    }
    let bytes = std::fs::read(arguments.next().unwrap()).unwrap();
    let mut setup = SandboxSetup::decode(&bytes, Vec::new()).unwrap();
    if !setup.guards.is_empty() {
        setup.landlock = forbid_creation();
    }
    if let Err(error) = enter_sandbox(setup) {
        eprintln!("{error}: {}", error.source);
        exit(3);
    }
    let script = arguments.next().unwrap();
    let error = Command::new("/bin/bash").arg("-c").arg(script).exec();
    eprintln!("{error}");
    exit(4);
}

extern "C" fn before_main() {
    probe();
}

#[used]
// SAFETY: the section holds pointers to functions without arguments; the loader calls each once.
#[unsafe(link_section = ".init_array")]
static PROBE_BEFORE_MAIN: extern "C" fn() = before_main;

fn enter_and_run(setup: &SandboxSetup, script: &str) -> Output {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), setup.encode()).unwrap();
    Command::new("/proc/self/exe")
        .arg0(PROBE_NAME)
        .arg(file.path())
        .arg(script)
        .env("LC_ALL", "C")
        .current_dir("/")
        .output()
        .unwrap()
}

#[test]
fn process_enters_a_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let setup = namespaces(with_writable(read_only(), &path));
    let script = format!(
        "grep -E '^(CapEff|NoNewPrivs)' /proc/self/status; echo x > {0}/file; echo x > {0}2",
        path.display()
    );
    let output = enter_and_run(&setup, &script);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let expected = "CapEff:\t0000000000000000\nNoNewPrivs:\t1\n";
    assert_eq!(stdout, expected, "{stderr}");
    assert!(stderr.contains("Read-only file system"), "{stderr}");
    assert_eq!(std::fs::read(path.join("file")).unwrap(), b"x\n");
}

#[test]
fn failed_step_is_named_in_the_error() {
    let step = MountStep::Protect {
        path: c"/nowhere".to_owned(),
    };
    let output = enter_and_run(&namespaces(vec![step]), "true");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        stderr,
        "cannot protect `/nowhere`: No such file or directory (os error 2)\n"
    );
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn guards_apply_to_a_process_that_entered_a_sandbox() {
    if forbid_creation().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let script = format!("cd {}; mkdir other; mkdir .git; exit 6", path.display());
    let output = enter_and_run(&guarding(&path), &script);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6), "{stderr}");
    assert!(path.join("other").is_dir(), "{stderr}");
    assert!(!path.join(".git").exists(), "{stderr}");
}

#[test]
fn process_that_entered_a_sandbox_can_bind_except_to_guarded_names() {
    if forbid_creation().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let output = enter_and_run(&guarding(&path), &binding(&path));
    assert_bound(&path, &String::from_utf8(output.stdout).unwrap());
}
