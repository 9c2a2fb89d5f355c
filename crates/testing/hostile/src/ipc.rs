//! Memory, queues and semaphores that are in no directory: they have numbers, or names of their own.

use std::ffi::CString;

use crate::{
    attempt::{Args, Attempt, Failure, Probe, ok},
    call::{call, owned},
};

pub(crate) const PROBES: &[(&str, Probe)] = &[
    // Prints the number of a segment, which stays until it is removed.
    ("shm-make", |_| {
        let id = call!(libc::SYS_shmget, libc::IPC_PRIVATE, 4096, 0o600)?;
        Ok(format!("ok {id}"))
    }),
    // Asks what is known of a segment, which takes the right to read it.
    ("shm-stat", |args| {
        let mut room = [0; 256];
        let id: i32 = args.number(0)?;
        Ok(ok(call!(
            libc::SYS_shmctl,
            id,
            libc::IPC_STAT,
            &mut room[..]
        )?))
    }),
    ("shm-remove", |args| {
        let id: i32 = args.number(0)?;
        Ok(ok(call!(libc::SYS_shmctl, id, libc::IPC_RMID, 0)?))
    }),
    ("queue-make", |args| {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC;
        queue(args, flags)
    }),
    ("queue-open", |args| {
        queue(args, libc::O_RDWR | libc::O_CLOEXEC)
    }),
    ("queue-remove", |args| {
        let name = args.text(0)?;
        Ok(ok(call!(libc::SYS_mq_unlink, name.as_c_str())?))
    }),
];

/// Opens a queue of messages; the kernel's names have no slash.
fn queue(args: &Args<'_>, flags: i32) -> Attempt {
    let name: CString = args.text(0)?;
    if name.as_bytes().contains(&b'/') {
        return Err(Failure::Usage);
    }
    Ok(ok(owned(call!(
        libc::SYS_mq_open,
        name.as_c_str(),
        flags,
        0o600,
        0
    ))?))
}
