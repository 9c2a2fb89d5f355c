//! Probes of namespaces and of kernel calls that a command does not need.
//!
//! Calls that would do harm get invalid arguments that the kernel checks only after the caller's
//! permission.

use std::{
    ffi::CString,
    fs,
    io::{self, Read},
};

use crate::{
    probe::{Probe, ProbeArgs, ProbeFailure, ProbeResult, ok, passed_permission_check},
    syscall::{call, describe_child_status, open, owned, wait},
};

pub(crate) const PROBES: &[(&str, Probe)] = &[
    ("acct", |_| {
        let nothing = c"/nothing-of-this-name";
        passed_permission_check(call!(libc::SYS_acct, nothing), &[libc::ENOENT])
    }),
    ("add-key", |_| {
        let (kind, name, value) = (c"user", c"exec-hostile", &b"x"[..]);
        let keyring = libc::KEY_SPEC_PROCESS_KEYRING;
        Ok(ok(call!(
            libc::SYS_add_key,
            kind,
            name,
            value,
            value.len(),
            keyring
        )?))
    }),
    ("bpf", bpf),
    ("chroot", |_| Ok(ok(call!(libc::SYS_chroot, c"/")?))),
    ("clone-newuser", |_| {
        let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
        clone(call!(libc::SYS_clone, flags, 0, 0, 0, 0))
    }),
    ("clone3-newuser", clone3),
    ("init-module", |_| {
        let nonsense = [libc::EFAULT, libc::ENOEXEC, libc::EINVAL];
        passed_permission_check(call!(libc::SYS_init_module, 0, 0, c""), &nonsense)
    }),
    ("finit-module", |_| {
        passed_permission_check(call!(libc::SYS_finit_module, -1, c"", 0), &[libc::EBADF])
    }),
    ("io-uring", |_| {
        let mut params = [0; 120];
        Ok(ok(owned(call!(
            libc::SYS_io_uring_setup,
            1,
            &mut params[..]
        ))?))
    }),
    // Zero operations and an invalid descriptor, so that nothing can change.
    ("io-uring-enter", |_| {
        let nonsense = [libc::EBADF, libc::EOPNOTSUPP];
        passed_permission_check(call!(libc::SYS_io_uring_enter, -1, 0, 0, 0), &nonsense)
    }),
    ("io-uring-register", |_| {
        let nonsense = [libc::EBADF, libc::EINVAL, libc::EOPNOTSUPP];
        passed_permission_check(call!(libc::SYS_io_uring_register, -1, 0, 0, 0), &nonsense)
    }),
    ("iopl", |_| Ok(ok(call!(libc::SYS_iopl, 3)?))),
    ("ioperm", |_| Ok(ok(call!(libc::SYS_ioperm, 0x80, 1, 1)?))),
    ("kexec", |_| {
        passed_permission_check(call!(libc::SYS_kexec_load, 0, 0, 0, -1), &[libc::EINVAL])
    }),
    ("keyctl", |_| {
        let (command, keyring) = (libc::KEYCTL_GET_KEYRING_ID, libc::KEY_SPEC_PROCESS_KEYRING);
        Ok(ok(call!(libc::SYS_keyctl, command, keyring, 1)?))
    }),
    ("perf", perf),
    ("quotactl", |_| {
        let nonsense = [libc::ENOENT, libc::ENOTBLK, libc::ENODEV];
        let nothing = c"/nothing-of-this-name";
        // Q_GETINFO of the user quota.
        let command = 0x80_0005 << 8;
        let mut buffer = [0; 64];
        let result = call!(libc::SYS_quotactl, command, nothing, 0, &mut buffer[..]);
        passed_permission_check(result, &nonsense)
    }),
    // Invalid magic numbers.
    ("reboot", |_| {
        passed_permission_check(call!(libc::SYS_reboot, 1, 2, 3, 0), &[libc::EINVAL])
    }),
    ("request-key", |_| {
        let (kind, name) = (c"user", c"exec-hostile-none");
        let result = call!(libc::SYS_request_key, kind, name, 0, 0);
        passed_permission_check(result, &[libc::ENOKEY])
    }),
    ("sethostname", sethostname),
    ("settime", settime),
    ("setns", setns),
    ("swapon", |_| {
        let nothing = c"/nothing-of-this-name";
        passed_permission_check(call!(libc::SYS_swapon, nothing, 0), &[libc::ENOENT])
    }),
    // Queries the number of unread bytes without reading.
    ("syslog", |_| Ok(ok(call!(libc::SYS_syslog, 9, 0, 0)?))),
    // Injects a newline into the terminal on stdin.
    ("tiocsti", |_| {
        let key = &b"\n"[..];
        Ok(ok(call!(libc::SYS_ioctl, 0, libc::TIOCSTI, key)?))
    }),
    ("unshare", unshare),
    ("userfaultfd", |_| {
        Ok(ok(owned(call!(libc::SYS_userfaultfd, libc::O_CLOEXEC))?))
    }),
];

const NAMESPACES: &[(&str, &str, i32)] = &[
    ("user", "user", libc::CLONE_NEWUSER),
    ("mount", "mnt", libc::CLONE_NEWNS),
    ("net", "net", libc::CLONE_NEWNET),
    ("pid", "pid", libc::CLONE_NEWPID),
    ("ipc", "ipc", libc::CLONE_NEWIPC),
    ("uts", "uts", libc::CLONE_NEWUTS),
    ("cgroup", "cgroup", libc::CLONE_NEWCGROUP),
];

fn namespace(
    args: &ProbeArgs<'_>,
    index: usize,
) -> Result<&'static (&'static str, &'static str, i32), ProbeFailure> {
    let word = args.word(index)?;
    let mut namespaces = NAMESPACES.iter();
    namespaces
        .find(|kind| word == kind.0)
        .ok_or(ProbeFailure::Usage)
}

/// Moves into a new namespace: `KIND`.
fn unshare(args: &ProbeArgs<'_>) -> ProbeResult {
    Ok(ok(call!(libc::SYS_unshare, namespace(args, 0)?.2)?))
}

/// Enters a namespace of another process: `KIND PID`.
fn setns(args: &ProbeArgs<'_>) -> ProbeResult {
    let (_, file, flag) = namespace(args, 0)?;
    let pid: u32 = args.number(1)?;
    let path = CString::new(format!("/proc/{pid}/ns/{file}")).unwrap_or_default();
    let namespace = open(&path, libc::O_RDONLY)?;
    Ok(ok(call!(libc::SYS_setns, &namespace, *flag)?))
}

fn clone3(_: &ProbeArgs<'_>) -> ProbeResult {
    // A `struct clone_args`: flags come first, the exit signal fifth.
    let mut clone_args = [0; 64];
    let flags = u64::from(libc::CLONE_NEWUSER.cast_unsigned());
    clone_args[..8].copy_from_slice(&flags.to_ne_bytes());
    let signal = u64::from(libc::SIGCHLD.cast_unsigned());
    clone_args[32..40].copy_from_slice(&signal.to_ne_bytes());
    clone(call!(libc::SYS_clone3, &clone_args[..], clone_args.len()))
}

/// Exits the child immediately and reaps it.
fn clone(result: io::Result<i64>) -> ProbeResult {
    match result? {
        0 => {
            // The child does not return from this call.
            let _ended = call!(libc::SYS_exit_group, 0);
            Err(ProbeFailure::Usage)
        }
        pid => Ok(describe_child_status(wait(pid)?)?),
    }
}

/// Creates a map.
fn bpf(_: &ProbeArgs<'_>) -> ProbeResult {
    const MAP_CREATE: i32 = 0;
    // An array with one entry and four-byte key and value.
    let numbers: [u32; 12] = [2, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let attributes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
    let result = call!(libc::SYS_bpf, MAP_CREATE, &attributes[..], attributes.len());
    Ok(ok(owned(result)?))
}

/// Counts page faults of this process.
fn perf(_: &ProbeArgs<'_>) -> ProbeResult {
    // A `struct perf_event_attr` of the first version: type, size, config.
    let mut attributes = [0; 64];
    attributes[..4].copy_from_slice(&1_u32.to_ne_bytes());
    attributes[4..8].copy_from_slice(&64_u32.to_ne_bytes());
    attributes[8..16].copy_from_slice(&2_u64.to_ne_bytes());
    let result = call!(libc::SYS_perf_event_open, &attributes[..], 0, -1, -1, 0);
    Ok(ok(owned(result)?))
}

/// Sets the hostname to its current value.
fn sethostname(_: &ProbeArgs<'_>) -> ProbeResult {
    let mut name = Vec::new();
    fs::File::open("/proc/sys/kernel/hostname")?.read_to_end(&mut name)?;
    name.truncate(name.trim_ascii_end().len());
    Ok(ok(call!(libc::SYS_sethostname, &name[..], name.len())?))
}

/// Sets the clock's tick length to its current value.
fn settime(_: &ProbeArgs<'_>) -> ProbeResult {
    // A `struct timex`: the modes come first, the tick length after ten words.
    const TICK: usize = 88;
    const ADJ_TICK: u32 = 0x4000;
    let mut timex = [0; 256];
    call!(libc::SYS_adjtimex, &mut timex[..])?;
    let mut request = [0; 256];
    request[..4].copy_from_slice(&ADJ_TICK.to_ne_bytes());
    request[TICK..TICK + 8].copy_from_slice(&timex[TICK..TICK + 8]);
    Ok(ok(call!(libc::SYS_adjtimex, &mut request[..])?))
}
