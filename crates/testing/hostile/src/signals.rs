//! Reaching other processes by their ids.

use std::fs;

use crate::{
    attempt::{Args, Attempt, Probe, ok},
    call::{call, owned},
};

pub(crate) const PROBES: &[(&str, Probe)] = &[
    // Signal 0 asks for the permission and sends nothing.
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
        // A `siginfo_t`: the signal, an error, and the code, which says SI_QUEUE.
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

/// Gives a process the processors that it has.
fn sched(args: &Args<'_>) -> Attempt {
    let pid: i32 = args.number(0)?;
    let mut mask = [0; 128];
    let room = mask.len();
    call!(libc::SYS_sched_getaffinity, pid, room, &mut mask[..])?;
    Ok(ok(call!(
        libc::SYS_sched_setaffinity,
        pid,
        room,
        &mask[..]
    )?))
}

/// Gives a process the priority that it has.
fn setpriority(args: &Args<'_>) -> Attempt {
    let (which, pid) = (libc::PRIO_PROCESS, args.number::<i32>(0)?);
    // The kernel counts from 40 down to 1.
    let nice = 20 - call!(libc::SYS_getpriority, which, pid)?;
    Ok(ok(call!(libc::SYS_setpriority, which, pid, nice)?))
}

/// Gives a process the limit of descriptors that it has.
fn prlimit(args: &Args<'_>) -> Attempt {
    let (pid, what) = (args.number::<i32>(0)?, libc::RLIMIT_NOFILE);
    let mut limit = [0; 16];
    call!(libc::SYS_prlimit64, pid, what, 0, &mut limit[..])?;
    Ok(ok(call!(libc::SYS_prlimit64, pid, what, &limit[..], 0)?))
}

/// Gives a process the priority of its I/O that it has.
fn ioprio(args: &Args<'_>) -> Attempt {
    const PROCESS: i32 = 1;
    let pid: i32 = args.number(0)?;
    let priority = call!(libc::SYS_ioprio_get, PROCESS, pid)?;
    Ok(ok(call!(libc::SYS_ioprio_set, PROCESS, pid, priority)?))
}
