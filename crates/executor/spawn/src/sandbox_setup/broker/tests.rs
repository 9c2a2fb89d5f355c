//! Tests the broker on this kernel: one thread is sandboxed like a command, and another runs the
//! broker. Some tests take the same steps with and without a sandbox and compare the results.

mod guarded_names;
mod racing_callers;
mod same_behaviour;
mod sockets;

use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::Path,
    sync::mpsc,
    thread,
};

use super::{GuardTable, answer, prepare};
use crate::raw;

/// Runs `inside` in a sandbox while `names` are guarded in `directory`. `None`: this kernel has no
/// Landlock.
pub(super) fn run_sandboxed<T: Send>(
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
            isolate_thread();
            enter_sandbox(&send);
            inside()
        });
        let broker = thread::Builder::new().stack_size(STACK);
        let broker = broker.spawn_scoped(scope, move || {
            isolate_thread();
            let names: Vec<_> = names
                .iter()
                .map(|name| CString::new(*name).unwrap())
                .collect();
            let processes = open_directory(Path::new("/proc"));
            let mut guards = GuardTable::new(processes.as_raw_fd());
            let opened = open_directory(directory);
            for name in &names {
                guards.add(opened.as_raw_fd(), name.as_ptr()).unwrap();
            }
            drop(opened);
            serve(&listeners.recv().unwrap(), &guards);
        });
        let broker = broker.unwrap();
        let result = command.join();
        broker.join().unwrap();
        result.unwrap()
    }))
}

/// Runs `outside` like `run_sandboxed` does, but without a sandbox.
pub(super) fn run_unsandboxed<T: Send>(outside: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            isolate_thread();
            outside()
        });
        thread.join().unwrap()
    })
}

/// Opens a directory with `O_PATH`.
pub(super) fn open_directory(directory: &Path) -> OwnedFd {
    let mut options = File::options();
    let options = options.read(true).custom_flags(libc::O_PATH);
    options.open(directory).unwrap().into()
}

/// Serves notifications until no process is left that could notify.
fn serve(listener: &OwnedFd, guards: &GuardTable) {
    prepare(listener.as_raw_fd());
    loop {
        let mut poll = [libc::pollfd {
            fd: listener.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        let ready = raw::poll(&mut poll, Some(30_000)).unwrap();
        assert_eq!(ready, 1, "timed out waiting for a notification");
        if poll[0].revents & libc::POLLIN != 0 {
            answer(listener.as_raw_fd(), guards).unwrap();
        } else if poll[0].revents != 0 {
            break;
        }
    }
}

/// Gives the thread its own working directory and umask, and drops root's privileges.
fn isolate_thread() {
    let flags = raw::int_arg(libc::CLONE_FS);
    raw::syscall(libc::SYS_unshare, [flags, 0, 0, 0, 0, 0]).unwrap();
    let header = [0x2008_0522_u32, 0];
    let none = [0_u32; 6];
    let args = [header.as_ptr() as usize, none.as_ptr() as usize, 0, 0, 0, 0];
    raw::syscall(libc::SYS_capset, args).unwrap();
    raw::syscall(libc::SYS_umask, [0o022, 0, 0, 0, 0, 0]).unwrap();
}

/// Forbids the thread to create anything, and sends the listener out.
fn enter_sandbox(listeners: &mpsc::SyncSender<OwnedFd>) {
    raw::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).unwrap();
    // Creating any kind of file, and moving between directories.
    let handled = 0b11_1111_1100_0000_u64;
    let ruleset = landlock(&raw const handled, 8, 0).unwrap();
    let args = [raw::int_arg(ruleset.as_raw_fd()), 0, 0, 0, 0, 0];
    raw::syscall(libc::SYS_landlock_restrict_self, args).unwrap();
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
    let listener = raw::syscall(libc::SYS_seccomp, args).unwrap();
    // SAFETY: the kernel has just created it.
    let listener = unsafe { OwnedFd::from_raw_fd(raw::to_i32(listener)) };
    listeners.send(listener).unwrap();
}

fn landlock(handled: *const u64, size: usize, flags: usize) -> Result<OwnedFd, i32> {
    let args = [handled as usize, size, flags, 0, 0, 0];
    let fd = raw::syscall(libc::SYS_landlock_create_ruleset, args)?;
    if flags != 0 {
        // The call returned a version instead of a descriptor.
        return File::open("/dev/null").map(OwnedFd::from).map_err(|_| 0);
    }
    // SAFETY: the kernel has just created it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw::to_i32(fd)) })
}

/// Builds a program that notifies of each call that creates something.
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

/// The stack of the real broker, including what its process needs besides.
const STACK: usize = 32 * 1024;

/// Results of the steps, one line each.
#[derive(Debug, Default)]
pub(super) struct Log(Vec<String>);

impl Log {
    /// Records a result: success, or its error.
    pub(super) fn note<T>(&mut self, what: &str, result: io::Result<T>) -> Option<T> {
        let outcome = match &result {
            Ok(_) => "ok".to_owned(),
            Err(error) => format!("{error}"),
        };
        self.0.push(format!("{what}: {outcome}"));
        result.ok()
    }

    /// Records a fact.
    pub(super) fn fact(&mut self, what: &str, fact: impl std::fmt::Debug) {
        self.0.push(format!("{what} = {fact:?}"));
    }
}

/// Takes the same steps twice, and compares results and files.
pub(super) fn compare(steps: impl Fn(&mut Log) + Sync) {
    let run = |directory: &Path| {
        let mut log = Log::default();
        std::env::set_current_dir(directory).unwrap();
        steps(&mut log);
        log.0
    };
    let (with, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(log) = run_sandboxed(with.path(), &[".git"], || run(with.path())) else {
        return;
    };
    assert_eq!(log, run_unsandboxed(|| run(without.path())));
    assert!(!log.is_empty());
    assert_eq!(tree(with.path()), tree(without.path()));
}

/// Returns every file below a directory: name, type and permissions, link count, content.
fn tree(directory: &Path) -> Vec<(String, u32, u64, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let about = path.symlink_metadata().unwrap();
        let kind = about.file_type();
        let content = if kind.is_symlink() {
            fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes()
        } else if kind.is_file() {
            fs::read(&path).unwrap_or_default()
        } else {
            Vec::new()
        };
        // The link count of a directory depends on the file system.
        let names = if kind.is_dir() { 0 } else { about.nlink() };
        all.push((name.clone(), about.mode(), names, content));
        if kind.is_dir() {
            let below = tree(&path).into_iter();
            all.extend(below.map(|(path, a, b, c)| (format!("{name}/{path}"), a, b, c)));
        }
    }
    all.sort();
    all
}

/// Returns a path as a C string.
pub(super) fn text(path: &str) -> CString {
    CString::new(path).unwrap()
}

/// Makes a system call that the C library does not use.
pub(super) fn call(number: i64, args: [usize; 6]) -> io::Result<usize> {
    raw::syscall(number, args).map_err(io::Error::from_raw_os_error)
}
