//! Callers that change their arguments while the broker works.

use std::{
    ffi::CString,
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
    thread,
};

use super::run_sandboxed;
use crate::raw;

/// How often each call is made while the path changes.
pub(super) const ROUNDS: usize = 3000;

#[test]
fn path_that_changes_while_read_never_creates_guarded_name() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("sub")).unwrap();
    let created = run_sandboxed(root.path(), &[".git"], || flip_name(root.path()));
    assert!(!root.path().join(".git").exists());
    assert!(
        created.is_none_or(|created| created > 0),
        "nothing was created"
    );
}

/// Creates directories and files at a path whose last letter keeps changing.
fn flip_name(root: &Path) -> usize {
    let directory = root.join(".gi_");
    let path = CString::new(directory.to_str().unwrap()).unwrap();
    let bytes = path.into_bytes_with_nul();
    let at = raw::int_arg(libc::AT_FDCWD);
    let flags = raw::int_arg(libc::O_CREAT | libc::O_WRONLY);
    let last = bytes.len() - 2;
    with_flipping_byte(bytes, last, |path| {
        let mut created = 0;
        for _ in 0..ROUNDS {
            let result = raw::syscall(libc::SYS_mkdirat, [at, path, 0o755, 0, 0, 0]);
            created += usize::from(result.is_ok());
            // Missing if the path was the other one.
            drop(fs::remove_dir(&directory));
            if let Ok(fd) = raw::syscall(libc::SYS_openat, [at, path, flags, 0o644, 0, 0]) {
                raw::close(raw::to_i32(fd)).unwrap();
                drop(fs::remove_file(&directory));
                created += 1;
            }
        }
        created
    })
}

/// Runs `work` on the address of bytes of which one alternates between `t` and `_`.
pub(super) fn with_flipping_byte<T>(
    bytes: Vec<u8>,
    index: usize,
    work: impl FnOnce(usize) -> T,
) -> T {
    let bytes: Vec<_> = bytes.into_iter().map(AtomicU8::new).collect();
    let letter = &bytes[index];
    let flip = || {
        // Both values last equally long, so that the broker sees both.
        for value in [b't', b'_'] {
            letter.store(value, Ordering::Relaxed);
            std::hint::spin_loop();
        }
    };
    run_concurrently(flip, || work(bytes.as_ptr() as usize))
}

#[test]
fn directory_that_changes_while_resolved_never_gets_guarded_name() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    for name in ["guarded", "free"] {
        fs::create_dir(path.join(name)).unwrap();
    }
    let created = run_sandboxed(&path.join("guarded"), &[".git"], || {
        symlink("free", path.join("link")).unwrap();
        symlink("guarded", path.join("other")).unwrap();
        let (one, two) = (path.join("link"), path.join("other"));
        let exchange = || {
            let (at, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
            rustix::fs::renameat_with(at, &one, at, &two, flags).unwrap();
        };
        run_concurrently(exchange, || {
            let mut created = 0;
            for _ in 0..ROUNDS {
                created += usize::from(fs::create_dir(path.join("link/.git")).is_ok());
                // Missing if the directory was the other one.
                drop(fs::remove_dir(path.join("free/.git")));
            }
            created
        })
    });
    assert!(!path.join("guarded/.git").exists());
    assert!(
        created.is_none_or(|created| created > 0),
        "nothing was created"
    );
}

#[test]
fn signal_does_not_repeat_a_brokered_call() {
    extern "C" fn nothing(_: libc::c_int) {}
    // Not used elsewhere in this process, and ignored by default.
    let signal = libc::SIGURG;
    // SAFETY: the set consists of integers; zero means no signal.
    let none = unsafe { std::mem::zeroed() };
    let action = libc::sigaction {
        sa_sigaction: nothing as *const () as usize,
        sa_mask: none,
        sa_flags: libc::SA_RESTART,
        sa_restorer: None,
    };
    // SAFETY: the handler does nothing.
    let set = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    assert_eq!(set, 0);
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    run_sandboxed(path, &[".git"], || {
        let number = |call| raw::syscall(call, [0; 6]).unwrap();
        let (process, thread) = (number(libc::SYS_getpid), number(libc::SYS_gettid));
        let interrupt = || {
            let args = [process, thread, raw::int_arg(signal), 0, 0, 0];
            raw::syscall(libc::SYS_tgkill, args).unwrap();
        };
        run_concurrently(interrupt, || {
            for index in 0..ROUNDS / 3 {
                let path = path.join(format!("{index}"));
                fs::create_dir(&path).unwrap();
                fs::File::create_new(path.join("file")).unwrap();
            }
        });
    });
}

#[test]
fn calls_of_many_threads_are_answered() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    let done = run_sandboxed(path, &[".git"], || {
        thread::scope(|scope| {
            for index in 0..8 {
                scope.spawn(move || {
                    let own = path.join(format!("{index}"));
                    fs::create_dir(&own).unwrap();
                    for file in 0..50 {
                        fs::write(own.join(format!("{file}")), "text").unwrap();
                        fs::write(path.join("shared"), "text").unwrap();
                    }
                });
            }
        });
    });
    if done.is_some() {
        assert_eq!(fs::read_dir(path).unwrap().count(), 9);
        assert_eq!(fs::read_dir(path.join("7")).unwrap().count(), 50);
    }
}

/// Runs `work` while another thread repeats `step`.
pub(super) fn run_concurrently<T>(step: impl Fn() + Sync, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                step();
            }
        });
        // Stops the other thread even if the work panics.
        let _stop = Stop(&stop);
        work()
    })
}

/// Sets a flag on drop.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
