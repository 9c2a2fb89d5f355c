//! Runs code in a thread that can make nothing itself, with a broker beside it.

use std::{
    ffi::CString,
    fs::File,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
    sync::mpsc,
    thread,
};

use super::super::{Guards, answer, prepare};
use crate::raw;

/// Runs `inside` while `names` are guarded in `directory`. `None`: this kernel has no Landlock.
pub(super) fn enclosed<T: Send>(
    directory: &Path,
    names: &[&str],
    inside: impl FnOnce() -> T + Send,
) -> Option<T> {
    if landlock(std::ptr::null(), 0, 1).is_err() {
        eprintln!("not run: this kernel has no Landlock");
        return None;
    }
    let (send, listeners) = mpsc::sync_channel(1);
    Some(thread::scope(|scope| {
        let command = scope.spawn(move || {
            live_apart();
            enclose(&send);
            inside()
        });
        let broker = thread::Builder::new().stack_size(STACK);
        let broker = broker.spawn_scoped(scope, move || {
            live_apart();
            let names: Vec<_> = names
                .iter()
                .map(|name| CString::new(*name).unwrap())
                .collect();
            let processes = place(Path::new("/proc"));
            let mut guards = Guards::new(processes.as_raw_fd());
            let place = place(directory);
            for name in &names {
                guards.add(place.as_raw_fd(), name.as_ptr()).unwrap();
            }
            drop(place);
            serve(&listeners.recv().unwrap(), &guards);
        });
        let broker = broker.unwrap();
        let result = command.join();
        broker.join().unwrap();
        result.unwrap()
    }))
}

/// Runs `outside` as `enclosed` would, but without an enclosure.
pub(super) fn free<T: Send>(outside: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            live_apart();
            outside()
        });
        thread.join().unwrap()
    })
}

/// Opens a directory as a place.
pub(in super::super) fn place(directory: &Path) -> OwnedFd {
    let mut options = File::options();
    let options = options.read(true).custom_flags(libc::O_PATH);
    options.open(directory).unwrap().into()
}

/// Answers until nobody is left who could ask.
fn serve(listener: &OwnedFd, guards: &Guards) {
    prepare(listener.as_raw_fd());
    loop {
        let mut poll = [libc::pollfd {
            fd: listener.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        let ready = raw::poll(&mut poll, Some(30_000)).unwrap();
        assert_eq!(ready, 1, "nothing was asked for a long time");
        if poll[0].revents & libc::POLLIN != 0 {
            answer(listener.as_raw_fd(), guards).unwrap();
        } else if poll[0].revents != 0 {
            break;
        }
    }
}

/// Gives the thread a working directory and a umask of its own, and takes root's privileges away.
fn live_apart() {
    let flags = raw::int(libc::CLONE_FS);
    raw::numbers(libc::SYS_unshare, [flags, 0, 0, 0, 0, 0]).unwrap();
    let header = [0x2008_0522_u32, 0];
    let none = [0_u32; 6];
    let args = [header.as_ptr() as usize, none.as_ptr() as usize, 0, 0, 0, 0];
    raw::numbers(libc::SYS_capset, args).unwrap();
    raw::numbers(libc::SYS_umask, [0o022, 0, 0, 0, 0, 0]).unwrap();
}

/// Lets the thread make nothing, and hands the listener out.
fn enclose(listeners: &mpsc::SyncSender<OwnedFd>) {
    raw::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).unwrap();
    // Every kind of file that can be made, and moving between directories.
    let handled = 0b11_1111_1100_0000_u64;
    let ruleset = landlock(&raw const handled, 8, 0).unwrap();
    let args = [raw::int(ruleset.as_raw_fd()), 0, 0, 0, 0, 0];
    raw::numbers(libc::SYS_landlock_restrict_self, args).unwrap();
    let filter = filter();
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap(),
        filter: filter.as_ptr().cast_mut(),
    };
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let args = [
        usize::try_from(libc::SECCOMP_SET_MODE_FILTER).unwrap(),
        usize::try_from(flags).unwrap(),
        &raw const program as usize,
        0,
        0,
        0,
    ];
    let listener = raw::numbers(libc::SYS_seccomp, args).unwrap();
    // SAFETY: the kernel has just made it.
    let listener = unsafe { OwnedFd::from_raw_fd(raw::to_i32(listener)) };
    listeners.send(listener).unwrap();
}

fn landlock(handled: *const u64, size: usize, flags: usize) -> Result<OwnedFd, i32> {
    let args = [handled as usize, size, flags, 0, 0, 0];
    let fd = raw::numbers(libc::SYS_landlock_create_ruleset, args)?;
    if flags != 0 {
        // It is a version.
        return File::open("/dev/null").map(OwnedFd::from).map_err(|_| 0);
    }
    // SAFETY: the kernel has just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw::to_i32(fd)) })
}

/// A program that notifies of each call that makes something.
fn filter() -> Vec<libc::sock_filter> {
    let mut calls = vec![
        (libc::SYS_openat, Some(2)),
        (libc::SYS_openat2, None),
        (libc::SYS_mkdirat, None),
        (libc::SYS_mknodat, None),
        (libc::SYS_symlinkat, None),
        (libc::SYS_linkat, None),
        (libc::SYS_renameat, None),
        (libc::SYS_renameat2, None),
        (libc::SYS_bind, None),
    ];
    #[cfg(target_arch = "x86_64")]
    calls.extend([
        (libc::SYS_open, Some(1)),
        (libc::SYS_creat, None),
        (libc::SYS_mkdir, None),
        (libc::SYS_mknod, None),
        (libc::SYS_symlink, None),
        (libc::SYS_link, None),
        (libc::SYS_rename, None),
    ]);
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let any_bit = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let done = libc::BPF_RET | libc::BPF_K;
    let mut program = Vec::new();
    for (number, flags) in calls {
        let number = u32::try_from(number).unwrap();
        program.push(step(load, 0, 0, 0));
        if let Some(index) = flags {
            program.push(step(equal, 0, 3, number));
            program.push(step(load, 0, 0, 16 + 8 * index));
            program.push(step(any_bit, 0, 1, libc::O_CREAT.unsigned_abs()));
        } else {
            program.push(step(equal, 0, 1, number));
        }
        program.push(step(done, 0, 0, libc::SECCOMP_RET_USER_NOTIF));
    }
    program.push(step(done, 0, 0, libc::SECCOMP_RET_ALLOW));
    program
}

/// As much as the broker has in earnest, with all else that its process does.
const STACK: usize = 32 * 1024;
