//! Clones processes that share memory with this one, and waits for them.

use std::{
    ffi::{c_int, c_void},
    sync::atomic::AtomicU32,
};

use super::{Errno, decode_result, int_arg, poll, poll_in, syscall, to_i32};

/// Clones a process that shares this one's memory and runs `entry` on its own stack.
///
/// If the flags contain `CLONE_CHILD_CLEARTID`, the kernel clears and wakes `word` when the process
/// exits.
///
/// # Safety
/// `stack_top` is the 16-byte aligned end of memory that nothing else uses while the process lives.
/// `entry` allocates nothing, takes no lock, touches no thread-local state, and never returns.
/// `word` lives as long as the process.
pub(crate) unsafe fn clone_vm(
    entry: extern "C" fn(*mut c_void) -> c_int,
    stack_top: *mut u8,
    flags: c_int,
    argument: *mut c_void,
    word: *const AtomicU32,
) -> Result<i32, Errno> {
    let flags = int_arg(flags | libc::CLONE_VM | libc::SIGCHLD);
    // SAFETY: the caller guarantees stack, entry and word.
    let result = unsafe { clone_onto(entry, stack_top, flags, argument, word) };
    decode_result(result).map(to_i32)
}

/// # Safety
/// As for [`clone_vm`].
#[cfg(target_arch = "x86_64")]
unsafe fn clone_onto(
    entry: extern "C" fn(*mut c_void) -> c_int,
    stack_top: *mut u8,
    flags: usize,
    argument: *mut c_void,
    word: *const AtomicU32,
) -> i64 {
    let result: i64;
    // SAFETY: the child finds entry and argument in registers, calls entry on the new stack, and
    // never returns. In the parent this is an ordinary system call.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone => result,
            in("rdi") flags, in("rsi") stack_top, in("rdx") 0_usize,
            in("r10") word, in("r8") 0_usize,
            in("r12") entry, in("r13") argument,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// # Safety
/// As for [`clone_vm`].
#[cfg(target_arch = "aarch64")]
unsafe fn clone_onto(
    entry: extern "C" fn(*mut c_void) -> c_int,
    stack_top: *mut u8,
    flags: usize,
    argument: *mut c_void,
    word: *const AtomicU32,
) -> i64 {
    let result: i64;
    // SAFETY: the child finds entry and argument in registers, calls entry on the new stack, and
    // never returns. In the parent this is an ordinary system call.
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x21",
            "blr x20",
            "brk 1",
            "2:",
            in("x8") libc::SYS_clone,
            inlateout("x0") flags => result,
            in("x1") stack_top, in("x2") 0_usize, in("x3") 0_usize, in("x4") word,
            in("x20") entry, in("x21") argument,
        );
    }
    result
}

/// Waits until `word` is woken. Returns at once if it is not `expected`.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32) {
    let address = word.as_ptr() as usize;
    let args = [address, int_arg(libc::FUTEX_WAIT), expected as usize];
    // The caller checks the word again after any wake-up.
    let _ = syscall(libc::SYS_futex, args);
}

/// Wakes one waiter of `word`.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let address = word.as_ptr() as usize;
    // Waking fails only if nothing waits.
    let _ = syscall(libc::SYS_futex, [address, int_arg(libc::FUTEX_WAKE), 1]);
}

/// Opens a pidfd with close-on-exec set.
pub(crate) fn pidfd_open(pid: i32) -> Result<c_int, Errno> {
    syscall(libc::SYS_pidfd_open, [int_arg(pid), 0]).map(to_i32)
}

/// Returns whether the process of a pidfd has exited.
pub(crate) fn pidfd_has_exited(pidfd: c_int) -> bool {
    poll(&mut [poll_in(pidfd)], Some(0)) != Ok(0)
}
