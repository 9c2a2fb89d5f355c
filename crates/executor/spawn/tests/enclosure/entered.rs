//! Processes that enclose themselves.

use std::{
    ffi::OsStr,
    os::unix::process::CommandExt,
    process::{Command, Output},
};

use super::*;

/// The name under which the test's executable encloses itself and becomes a shell.
const PROBE_NAME: &str = "exec-enclosed-probe";

/// Encloses this process by the file that the first argument names, and runs a shell with the
/// second.
fn probe() {
    let mut arguments = std::env::args_os();
    if arguments.next().as_deref() != Some(OsStr::new(PROBE_NAME)) {
        return;
    }
    let bytes = std::fs::read(arguments.next().unwrap()).unwrap();
    let mut enclosure = Enclosure::decode(&bytes, Vec::new()).unwrap();
    if !enclosure.guards.is_empty() {
        enclosure.landlock = guarded::nothing_can_be_made();
    }
    if let Err(error) = enter(enclosure) {
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
static BEFORE_MAIN: extern "C" fn() = before_main;

fn enter_and_run(enclosure: &Enclosure, script: &str) -> Output {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), enclosure.encode()).unwrap();
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
fn a_process_encloses_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let enclosure = namespaces(with_writable(read_only(), &path));
    let script = format!(
        "grep -E '^(CapEff|NoNewPrivs)' /proc/self/status; echo x > {0}/file; echo x > {0}2",
        path.display()
    );
    let output = enter_and_run(&enclosure, &script);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let expected = "CapEff:\t0000000000000000\nNoNewPrivs:\t1\n";
    assert_eq!(stdout, expected, "{stderr}");
    assert!(stderr.contains("Read-only file system"), "{stderr}");
    assert_eq!(std::fs::read(path.join("file")).unwrap(), b"x\n");
}

#[test]
fn what_the_host_refuses_is_named() {
    let step = Step::Protect {
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
fn a_process_that_enclosed_itself_is_guarded() {
    if guarded::nothing_can_be_made().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let script = format!("cd {}; mkdir other; mkdir .git; exit 6", path.display());
    let output = enter_and_run(&guarded::guarding(&path), &script);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6), "{stderr}");
    assert!(path.join("other").is_dir(), "{stderr}");
    assert!(!path.join(".git").exists(), "{stderr}");
}

#[test]
fn sockets_of_a_process_that_enclosed_itself_are_bound_but_to_guarded_names() {
    if guarded::nothing_can_be_made().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let output = enter_and_run(&guarded::guarding(&path), &guarded::binding(&path));
    guarded::assert_bound(&path, &String::from_utf8(output.stdout).unwrap());
}
