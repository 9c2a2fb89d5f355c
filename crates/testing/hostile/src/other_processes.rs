//! Probes that reach other processes: memory, descriptors, environment, signals and priorities.

use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    os::unix::process::parent_id,
};

use crate::{
    probe::{Probe, ProbeArgs, ProbeResult, ok, passed_permission_check},
    syscall::{call, owned},
};

pub(crate) const PROBES: &[(&str, Probe)] = &[
    ("open-mem", |args| {
        let path = format!("/proc/{}/mem", args.number::<u32>(0)?);
        Ok(ok(OpenOptions::new().read(true).write(true).open(path)?))
    }),
    ("pidfd-getfd", |args| {
        let pidfd = owned(call!(libc::SYS_pidfd_open, args.number::<i32>(0)?, 0))?;
        Ok(ok(owned(call!(libc::SYS_pidfd_getfd, &pidfd, 0, 0))?))
    }),
    ("process-vm-read", |args| {
        process_vm(args, libc::SYS_process_vm_readv)
    }),
    ("process-vm-write", |args| {
        process_vm(args, libc::SYS_process_vm_writev)
    }),
    ("ptrace", |args| seize(args.number(0)?)),
    ("ptrace-parent", |_| seize(parent_id().cast_signed())),
    // Being traced needs no permission; the probe is about the call.
    ("ptrace-me", |_| {
        Ok(ok(call!(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0)?))
    }),
    ("read-environ", |args| {
        let mut text = Vec::new();
        let path = format!("/proc/{}/environ", args.number::<u32>(0)?);
        File::open(path)?.read_to_end(&mut text)?;
        Ok("ok".to_owned())
    }),
    ("read-root", |args| {
        let path = format!("/proc/{}/root", args.number::<u32>(0)?);
        Ok(ok(fs::read_link(path)?))
    }),
    ("kcmp", |args| {
        // KCMP_VM.
        let (own, other) = (std::process::id(), args.number::<u32>(0)?);
        Ok(ok(call!(libc::SYS_kcmp, own, other, 1, 0, 0)?))
    }),
    ("process-madvise", |args| {
        let pidfd = owned(call!(libc::SYS_pidfd_open, args.number::<i32>(0)?, 0))?;
        // No ranges: only checks the permission. MADV_COLD.
        let result = call!(libc::SYS_process_madvise, &pidfd, 0, 0, 20, 0);
        passed_permission_check(result, &[libc::EFAULT])
    }),
    // Signal 0 only checks the permission.
    ("kill", |args| {
        let pid: i32 = args.number(0)?;
        let signal: i32 = args.number(1)?;
        Ok(ok(call!(libc::SYS_kill, pid, signal)?))
    }),
    ("kill-all", |_| Ok(ok(call!(libc::SYS_kill, -1, 0)?))),
    ("kill-group", |args| {
        let group: i32 = args.number(0)?;
        Ok(ok(call!(libc::SYS_kill, -group, 0)?))
    }),
    ("pidfd-signal", |args| {
        let pidfd = owned(call!(libc::SYS_pidfd_open, args.number::<i32>(0)?, 0))?;
        Ok(ok(call!(libc::SYS_pidfd_send_signal, &pidfd, 0, 0, 0)?))
    }),
    ("ioprio", ioprio),
    ("prlimit", prlimit),
    ("sched", sched),
    ("see", |args| {
        let pid: u32 = args.number(0)?;
        Ok(ok(fs::symlink_metadata(format!("/proc/{pid}"))?))
    }),
    ("setpriority", setpriority),
    ("sigqueue", |args| {
        // A `siginfo_t`: signal, errno, and the code SI_QUEUE.
        let mut info = [0; 128];
        info[8..12].copy_from_slice(&(-1_i32).to_ne_bytes());
        let pid: i32 = args.number(0)?;
        Ok(ok(call!(libc::SYS_rt_sigqueueinfo, pid, 0, &info[..])?))
    }),
    ("tkill", |args| {
        let pid: i32 = args.number(0)?;
        Ok(ok(call!(libc::SYS_tgkill, pid, pid, 0)?))
    }),
];

/// Traces a process without stopping it; the exit of this process detaches.
fn seize(pid: i32) -> ProbeResult {
    const SEIZE: i32 = 0x4206;
    Ok(ok(call!(libc::SYS_ptrace, SEIZE, pid, 0, 0)?))
}

/// Reads or writes an unmapped address: EFAULT means that the access itself was permitted.
fn process_vm(args: &ProbeArgs<'_>, number: i64) -> ProbeResult {
    let pid: i32 = args.number(0)?;
    let mut byte = [0_u8; 1];
    let range = |address: usize| [address, 1].map(usize::to_ne_bytes).concat();
    let own = range(byte.as_mut_ptr().expose_provenance());
    let other = range(0);
    let result = call!(number, pid, &own[..], 1, &other[..], 1, 0);
    passed_permission_check(result, &[libc::EFAULT])
}

/// Sets the CPU affinity of a process to its current value.
fn sched(args: &ProbeArgs<'_>) -> ProbeResult {
    let pid: i32 = args.number(0)?;
    let mut mask = [0; 128];
    let size = mask.len();
    call!(libc::SYS_sched_getaffinity, pid, size, &mut mask[..])?;
    Ok(ok(call!(
        libc::SYS_sched_setaffinity,
        pid,
        size,
        &mask[..]
    )?))
}

/// Sets the priority of a process to its current value.
fn setpriority(args: &ProbeArgs<'_>) -> ProbeResult {
    let (which, pid) = (libc::PRIO_PROCESS, args.number::<i32>(0)?);
    // The system call returns 40 to 1.
    let nice = 20 - call!(libc::SYS_getpriority, which, pid)?;
    Ok(ok(call!(libc::SYS_setpriority, which, pid, nice)?))
}

/// Sets the descriptor limit of a process to its current value.
fn prlimit(args: &ProbeArgs<'_>) -> ProbeResult {
    let (pid, what) = (args.number::<i32>(0)?, libc::RLIMIT_NOFILE);
    let mut limit = [0; 16];
    call!(libc::SYS_prlimit64, pid, what, 0, &mut limit[..])?;
    Ok(ok(call!(libc::SYS_prlimit64, pid, what, &limit[..], 0)?))
}

/// Sets the I/O priority of a process to its current value.
fn ioprio(args: &ProbeArgs<'_>) -> ProbeResult {
    const PROCESS: i32 = 1;
    let pid: i32 = args.number(0)?;
    let priority = call!(libc::SYS_ioprio_get, PROCESS, pid)?;
    Ok(ok(call!(libc::SYS_ioprio_set, PROCESS, pid, priority)?))
}
