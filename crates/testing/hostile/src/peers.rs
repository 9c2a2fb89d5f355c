//! Other processes' memory, descriptors and secrets.

use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    os::unix::process::parent_id,
};

use crate::{
    attempt::{Args, Attempt, Probe, ok, reached},
    call::{call, owned},
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
    // Being traced is asking for it; it is the call that counts.
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
        // No ranges: only the permission is asked for. MADV_COLD.
        let result = call!(libc::SYS_process_madvise, &pidfd, 0, 0, 20, 0);
        reached(result, &[libc::EFAULT])
    }),
];

/// Follows a process without stopping it; this process's end lets go of it.
fn seize(pid: i32) -> Attempt {
    const SEIZE: i32 = 0x4206;
    Ok(ok(call!(libc::SYS_ptrace, SEIZE, pid, 0, 0)?))
}

/// Reads or writes where nothing is mapped: who may, is told so.
fn process_vm(args: &Args<'_>, number: i64) -> Attempt {
    let pid: i32 = args.number(0)?;
    let mut byte = [0_u8; 1];
    let range = |address: usize| [address, 1].map(usize::to_ne_bytes).concat();
    let own = range(byte.as_mut_ptr().expose_provenance());
    let other = range(0);
    let result = call!(number, pid, &own[..], 1, &other[..], 1, 0);
    reached(result, &[libc::EFAULT])
}
