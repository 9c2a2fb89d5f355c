//! Callers that change their minds while the broker works.

use std::{
    ffi::CString,
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
    thread,
};

use super::enclosed;
use crate::raw;

/// How often each call is made while the path flips.
pub(super) const ROUNDS: usize = 3000;

#[test]
fn a_path_that_flips_while_it_is_read_never_makes_a_guarded_name() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("sub")).unwrap();
    let made = enclosed(root.path(), &[".git"], || flip_name(root.path()));
    assert!(!root.path().join(".git").exists());
    assert!(made.is_none_or(|made| made > 0), "nothing was made at all");
}

/// Makes directories and files at a path whose last letter is another at every moment.
fn flip_name(root: &Path) -> usize {
    let directory = root.join(".gi_");
    let path = CString::new(directory.to_str().unwrap()).unwrap();
    let bytes = path.into_bytes_with_nul();
    let at = raw::int_arg(libc::AT_FDCWD);
    let flags = raw::int_arg(libc::O_CREAT | libc::O_WRONLY);
    let last = bytes.len() - 2;
    flipping(bytes, last, |path| {
        let mut made = 0;
        for _ in 0..ROUNDS {
            let result = raw::syscall(libc::SYS_mkdirat, [at, path, 0o755, 0, 0, 0]);
            made += usize::from(result.is_ok());
            // There is none if the path was the other one.
            drop(fs::remove_dir(&directory));
            if let Ok(fd) = raw::syscall(libc::SYS_openat, [at, path, flags, 0o644, 0, 0]) {
                raw::close(raw::to_i32(fd)).unwrap();
                drop(fs::remove_file(&directory));
                made += 1;
            }
        }
        made
    })
}

/// Runs `work` on the address of bytes of which one is `t` and `_` in turns.
pub(super) fn flipping<T>(bytes: Vec<u8>, index: usize, work: impl FnOnce(usize) -> T) -> T {
    let bytes: Vec<_> = bytes.into_iter().map(AtomicU8::new).collect();
    let letter = &bytes[index];
    let flip = || {
        // As long the one as the other, so that both are met.
        for value in [b't', b'_'] {
            letter.store(value, Ordering::Relaxed);
            std::hint::spin_loop();
        }
    };
    meanwhile(flip, || work(bytes.as_ptr() as usize))
}

#[test]
fn a_directory_that_flips_while_it_is_found_never_gets_a_guarded_name() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    for name in ["guarded", "free"] {
        fs::create_dir(path.join(name)).unwrap();
    }
    let made = enclosed(&path.join("guarded"), &[".git"], || {
        symlink("free", path.join("link")).unwrap();
        symlink("guarded", path.join("other")).unwrap();
        let (one, two) = (path.join("link"), path.join("other"));
        let exchange = || {
            let (at, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
            rustix::fs::renameat_with(at, &one, at, &two, flags).unwrap();
        };
        meanwhile(exchange, || {
            let mut made = 0;
            for _ in 0..ROUNDS {
                made += usize::from(fs::create_dir(path.join("link/.git")).is_ok());
                // There is none if the directory was the other one.
                drop(fs::remove_dir(path.join("free/.git")));
            }
            made
        })
    });
    assert!(!path.join("guarded/.git").exists());
    assert!(made.is_none_or(|made| made > 0), "nothing was made at all");
}

#[test]
fn a_signal_does_not_repeat_a_call() {
    extern "C" fn nothing(_: libc::c_int) {}
    // One that nothing else here uses, and that is ignored otherwise.
    let signal = libc::SIGURG;
    // SAFETY: the set is plain numbers, for which zero is a value: no signal.
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
    enclosed(path, &[".git"], || {
        let number = |call| raw::syscall(call, [0; 6]).unwrap();
        let (process, thread) = (number(libc::SYS_getpid), number(libc::SYS_gettid));
        let interrupt = || {
            let args = [process, thread, raw::int_arg(signal), 0, 0, 0];
            raw::syscall(libc::SYS_tgkill, args).unwrap();
        };
        meanwhile(interrupt, || {
            for index in 0..ROUNDS / 3 {
                let path = path.join(format!("{index}"));
                fs::create_dir(&path).unwrap();
                fs::File::create_new(path.join("file")).unwrap();
            }
        });
    });
}

#[test]
fn many_threads_are_answered() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    let done = enclosed(path, &[".git"], || {
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

/// Runs `work` while another thread does `step` over and over.
pub(super) fn meanwhile<T>(step: impl Fn() + Sync, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                step();
            }
        });
        // Also if the work panics: the other thread is waited for.
        let _stop = Stop(&stop);
        work()
    })
}

/// Sets a flag when dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
