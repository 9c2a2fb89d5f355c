//! System calls without libc, and hence without `errno` and thread-local state, including passing
//! descriptors over unix sockets.
//!
//! Supervisors and children share the spawner's memory, including its thread-local storage, and run
//! concurrently. libc's wrappers would race for `errno`.

mod clone;
mod owned_descriptor;

use std::{
    ffi::{CStr, c_char, c_int},
    mem::MaybeUninit,
    ptr,
};

pub(crate) use self::{
    clone::{clone_vm, futex_wait, futex_wake, pidfd_has_exited, pidfd_open},
    owned_descriptor::{OpenHow, OwnedDescriptor, close_from_except},
};

/// An error number.
pub(crate) type Errno = i32;

/// Makes a system call.
///
/// # Safety
/// The arguments are valid for this call, and pointers are valid for its accesses.
#[cfg(target_arch = "x86_64")]
unsafe fn raw_syscall(number: i64, args: [usize; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller guarantees the arguments; the kernel clobbers rcx and r11 only.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call.
///
/// # Safety
/// The arguments are valid for this call, and pointers are valid for its accesses.
#[cfg(target_arch = "aarch64")]
unsafe fn raw_syscall(number: i64, args: [usize; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller guarantees the arguments; the kernel clobbers x0 only.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3],
            in("x4") args[4], in("x5") args[5],
            options(nostack),
        );
    }
    result
}

/// Makes a system call and decodes its result. Arguments that are left out are zero.
pub(crate) fn syscall<const N: usize>(number: i64, args: [usize; N]) -> Result<usize, Errno> {
    const { assert!(N <= 6) };
    let mut registers = [0; 6];
    registers[..N].copy_from_slice(&args);
    // SAFETY: every caller in this crate passes plain numbers, or pointers to memory it holds for
    // the duration of the call.
    decode_result(unsafe { raw_syscall(number, registers) })
}

fn decode_result(result: i64) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| i32::try_from(-result).unwrap_or(i32::MAX))
}

/// Sign-extends an int to register size.
#[expect(clippy::cast_sign_loss, reason = "registers carry the bit pattern")]
pub(crate) fn int_arg(value: c_int) -> usize {
    value as isize as usize
}

pub(crate) fn setsid() -> Result<usize, Errno> {
    syscall(libc::SYS_setsid, [])
}

pub(crate) fn getpid() -> i32 {
    syscall(libc::SYS_getpid, []).map_or(0, to_i32)
}

pub(crate) fn getppid() -> i32 {
    syscall(libc::SYS_getppid, []).map_or(0, to_i32)
}

pub(crate) fn getpgid(pid: i32) -> Result<i32, Errno> {
    syscall(libc::SYS_getpgid, [int_arg(pid)]).map(to_i32)
}

pub(crate) fn kill(pid: i32, signal: i32) -> Result<usize, Errno> {
    syscall(libc::SYS_kill, [int_arg(pid), int_arg(signal)])
}

pub(crate) fn prctl(option: c_int, argument: usize) -> Result<usize, Errno> {
    syscall(libc::SYS_prctl, [int_arg(option), argument])
}

/// Moves this process into a namespace of this type.
pub(crate) fn join_namespace(namespace: c_int, kind: c_int) -> Result<(), Errno> {
    let args = [int_arg(namespace), int_arg(kind)];
    syscall(libc::SYS_setns, args).map(|_| ())
}

pub(crate) fn dup2(from: c_int, to: c_int) -> Result<usize, Errno> {
    if from == to {
        // `dup3` onto itself fails, and close-on-exec would stay set.
        return syscall(libc::SYS_fcntl, [int_arg(from), int_arg(libc::F_SETFD), 0]);
    }
    syscall(libc::SYS_dup3, [int_arg(from), int_arg(to), 0])
}

/// Duplicates a descriptor to a number of at least `least`, with close-on-exec set.
pub(crate) fn dup_above(from: c_int, least: c_int) -> Result<c_int, Errno> {
    syscall(
        libc::SYS_fcntl,
        [
            int_arg(from),
            int_arg(libc::F_DUPFD_CLOEXEC),
            int_arg(least),
        ],
    )
    .map(to_i32)
}

pub(crate) fn close(fd: c_int) -> Result<usize, Errno> {
    syscall(libc::SYS_close, [int_arg(fd)])
}

pub(crate) fn close_range(first: c_int, last: c_int) -> Result<usize, Errno> {
    syscall(libc::SYS_close_range, [int_arg(first), int_arg(last)])
}

/// Marks a range of descriptors close-on-exec. Needs Linux 5.11.
pub(crate) fn close_range_on_exec(first: c_int, last: c_int) -> Result<usize, Errno> {
    let on_exec = usize::try_from(libc::CLOSE_RANGE_CLOEXEC).unwrap_or(0);
    syscall(
        libc::SYS_close_range,
        [int_arg(first), int_arg(last), on_exec],
    )
}

pub(crate) fn set_controlling_terminal(fd: c_int) -> Result<usize, Errno> {
    let request = usize::try_from(libc::TIOCSCTTY).unwrap_or(0);
    syscall(libc::SYS_ioctl, [int_arg(fd), request, 0])
}

pub(crate) fn chdir(path: *const c_char) -> Result<usize, Errno> {
    syscall(libc::SYS_chdir, [path as usize])
}

pub(crate) fn execve(
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> Errno {
    let args = [path as usize, argv as usize, envp as usize];
    syscall(libc::SYS_execve, args).err().unwrap_or(0)
}

/// Empties the signal mask.
pub(crate) fn unblock_signals() -> Result<usize, Errno> {
    let none = 0_u64;
    let args = [int_arg(libc::SIG_SETMASK), &raw const none as usize, 0, 8];
    syscall(libc::SYS_rt_sigprocmask, args)
}

/// Resets a signal to its default disposition, including the signals that libc reserves.
pub(crate) fn reset_signal(signal: c_int) -> Result<usize, Errno> {
    // Handler, flags, restorer and mask, all zero: `SIG_DFL`.
    let action = [0_u64; 4];
    let args = [int_arg(signal), action.as_ptr() as usize, 0, 8];
    syscall(libc::SYS_rt_sigaction, args)
}

/// Lowers a soft and hard resource limit. A limit that is already lower stays.
pub(crate) fn lower_limit(resource: u32, value: u64) -> Result<usize, Errno> {
    let mut now = [u64::MAX; 2];
    let pointer = now.as_mut_ptr() as usize;
    syscall(libc::SYS_prlimit64, [0, resource as usize, 0, pointer])?;
    let limit = now.map(|now| now.min(value));
    let args = [0, resource as usize, limit.as_ptr() as usize, 0];
    syscall(libc::SYS_prlimit64, args)
}

/// Raises the soft limit of open files to the hard limit, and returns the previous limits.
pub(crate) fn raise_open_file_limit() -> Result<[u64; 2], Errno> {
    let mut now = [0; 2];
    let resource = libc::RLIMIT_NOFILE as usize;
    let pointer = now.as_mut_ptr() as usize;
    syscall(libc::SYS_prlimit64, [0, resource, 0, pointer])?;
    let [_, hard] = now;
    set_open_file_limits([hard; 2])?;
    Ok(now)
}

/// Sets the soft and hard limit of open files.
pub(crate) fn set_open_file_limits(limits: [u64; 2]) -> Result<usize, Errno> {
    let resource = libc::RLIMIT_NOFILE as usize;
    let pointer = limits.as_ptr() as usize;
    syscall(libc::SYS_prlimit64, [0, resource, pointer, 0])
}

/// Reaps one exited child without waiting, and returns its usage. `Ok(0)`: no child has exited.
pub(crate) fn wait_any(status: &mut c_int, usage: &mut libc::rusage) -> Result<i32, Errno> {
    wait(libc::WNOHANG, status, usage)
}

/// As [`wait_any`], but also returns stopped children.
pub(crate) fn wait_any_or_stopped(status: &mut c_int) -> Result<i32, Errno> {
    wait(
        libc::WNOHANG | libc::WUNTRACED,
        status,
        &mut zeroed_rusage(),
    )
}

/// Waits for a child to exit, reaps it, and returns its usage.
pub(crate) fn wait_next(status: &mut c_int, usage: &mut libc::rusage) -> Result<i32, Errno> {
    wait(0, status, usage)
}

fn wait(flags: c_int, status: &mut c_int, usage: &mut libc::rusage) -> Result<i32, Errno> {
    let args = [
        int_arg(-1),
        &raw mut *status as usize,
        int_arg(flags | libc::__WALL),
        &raw mut *usage as usize,
    ];
    syscall(libc::SYS_wait4, args).map(to_i32)
}

/// Waits for one child to exit, and returns its status.
pub(crate) fn wait_for(pid: i32) -> c_int {
    let mut status = 0;
    let args = [
        int_arg(pid),
        &raw mut status as usize,
        int_arg(libc::__WALL),
        0,
    ];
    while syscall(libc::SYS_wait4, args) == Err(libc::EINTR) {}
    status
}

/// Returns the entry of a descriptor that is polled for input. A negative one is ignored.
pub(crate) fn poll_in(fd: c_int) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

pub(crate) fn poll(fds: &mut [libc::pollfd], timeout_ms: Option<u32>) -> Result<usize, Errno> {
    let timeout = timeout_ms.map(|ms| libc::timespec {
        tv_sec: i64::from(ms / 1000),
        tv_nsec: i64::from(ms % 1000) * 1_000_000,
    });
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    let args = [fds.as_mut_ptr() as usize, fds.len(), timeout as usize, 0, 8];
    syscall(libc::SYS_ppoll, args)
}

pub(crate) fn read(fd: c_int, buffer: &mut [u8]) -> Result<usize, Errno> {
    let args = [int_arg(fd), buffer.as_mut_ptr() as usize, buffer.len()];
    syscall(libc::SYS_read, args)
}

pub(crate) fn receive(fd: c_int, buffer: &mut [u8]) -> Result<usize, Errno> {
    let flags = int_arg(libc::MSG_DONTWAIT);
    let args = [
        int_arg(fd),
        buffer.as_mut_ptr() as usize,
        buffer.len(),
        flags,
    ];
    syscall(libc::SYS_recvfrom, args)
}

pub(crate) fn send(fd: c_int, data: &[u8]) -> Result<usize, Errno> {
    let flags = int_arg(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    let args = [int_arg(fd), data.as_ptr() as usize, data.len(), flags];
    syscall(libc::SYS_sendto, args)
}

pub(crate) fn open_read(path: &CStr, flags: c_int) -> Result<c_int, Errno> {
    open_read_at(libc::AT_FDCWD, path, flags).map(OwnedDescriptor::into_raw)
}

pub(crate) fn open_read_at(
    directory: c_int,
    path: &CStr,
    flags: c_int,
) -> Result<OwnedDescriptor, Errno> {
    let flags = int_arg(libc::O_RDONLY | libc::O_CLOEXEC | flags);
    let args = [int_arg(directory), path.as_ptr() as usize, flags];
    syscall(libc::SYS_openat, args).map(OwnedDescriptor::from_call)
}

/// Reads the target of a symbolic link.
pub(crate) fn read_link(directory: c_int, name: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    let args = [
        int_arg(directory),
        name.as_ptr() as usize,
        buffer.as_mut_ptr() as usize,
        buffer.len(),
    ];
    syscall(libc::SYS_readlinkat, args)
}

/// Reads directory entries in the kernel's format.
pub(crate) fn directory_entries(fd: c_int, buffer: &mut [u8]) -> Result<usize, Errno> {
    let args = [int_arg(fd), buffer.as_mut_ptr() as usize, buffer.len()];
    syscall(libc::SYS_getdents64, args)
}

/// Returns pages to the kernel. They read as zero afterwards.
pub(crate) fn discard_pages(start: *mut u8, length: usize) {
    // If this fails, only the memory stays allocated.
    let _ = syscall(
        libc::SYS_madvise,
        [start as usize, length, int_arg(libc::MADV_DONTNEED)],
    );
}

pub(crate) fn exit(code: c_int) -> ! {
    loop {
        let _ = syscall(libc::SYS_exit_group, [int_arg(code)]);
    }
}

/// Returns an all-zero usage record.
pub(crate) fn zeroed_rusage() -> libc::rusage {
    // SAFETY: the record consists of integers, for which zero is valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

pub(crate) fn to_i32(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// A number formatted as text, without allocating.
#[derive(Debug)]
pub(crate) struct NumberText {
    /// The digits, right-aligned, followed by a zero byte.
    bytes: [u8; Self::BYTES],
    start: usize,
}

impl NumberText {
    /// 64 bits in octal are 22 digits.
    const BYTES: usize = 24;

    pub(crate) fn decimal(number: u64) -> Self {
        Self::new(number, 10)
    }

    pub(crate) fn octal(number: u64) -> Self {
        Self::new(number, 8)
    }

    fn new(mut number: u64, base: u64) -> Self {
        let mut bytes = [0; Self::BYTES];
        let mut start = Self::BYTES - 1;
        loop {
            start -= 1;
            bytes[start] = b'0' + u8::try_from(number % base).unwrap_or(0);
            number /= base;
            if number == 0 {
                return Self { bytes, start };
            }
        }
    }

    pub(crate) fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes[self.start..]).unwrap_or_default()
    }
}

/// Opens a file in `/proc/<pid>` for reading.
pub(crate) fn open_proc_file(pid: i32, name: &CStr) -> Result<c_int, Errno> {
    let mut path = [0; 48];
    let number = NumberText::decimal(u64::from(pid.unsigned_abs()));
    let parts = [b"/proc/", number.text().to_bytes(), b"/", name.to_bytes()];
    // Leaves the last byte zero as the terminator.
    let buffer = path.iter_mut().take(47);
    for (byte, source) in buffer.zip(parts.into_iter().flatten()) {
        *byte = *source;
    }
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| libc::ENAMETOOLONG)?;
    open_read(path, 0)
}

/// Parses a decimal number at the start of a text.
pub(crate) fn leading_number(text: &[u8]) -> Option<i32> {
    let mut number = 0_i32;
    let mut digits = 0;
    for byte in text.iter().take_while(|byte| byte.is_ascii_digit()) {
        number = number
            .checked_mul(10)?
            .checked_add(i32::from(byte - b'0'))?;
        digits += 1;
    }
    (digits > 0).then_some(number)
}

/// Most descriptors in one message.
const MAX_PASSED: usize = 64;
/// Header of a control message: length, level and type.
const HEAD_BYTES: usize = 16;

/// A control message in the kernel's layout.
#[repr(C, align(8))]
struct ControlMessage {
    length: usize,
    level: c_int,
    kind: c_int,
    descriptors: [c_int; MAX_PASSED],
}

/// Creates a pair of connected SEQPACKET sockets with close-on-exec set.
pub(crate) fn socket_pair() -> Result<[c_int; 2], Errno> {
    let mut pair = [-1; 2];
    let kind = int_arg(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC);
    let pointer = pair.as_mut_ptr() as usize;
    syscall(
        libc::SYS_socketpair,
        [int_arg(libc::AF_UNIX), kind, 0, pointer],
    )?;
    Ok(pair)
}

/// Sends one byte with descriptors attached.
pub(crate) fn send_descriptors(socket: c_int, descriptors: &[c_int]) -> Result<(), Errno> {
    let mut control = ControlMessage {
        length: HEAD_BYTES + size_of_val(descriptors),
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        descriptors: [-1; MAX_PASSED],
    };
    let slots = control.descriptors.get_mut(..descriptors.len());
    slots.ok_or(libc::E2BIG)?.copy_from_slice(descriptors);
    let length = control.length;
    transfer_message(
        libc::SYS_sendmsg,
        socket,
        &mut control,
        length,
        libc::MSG_NOSIGNAL,
    )
    .map(|_| ())
}

/// Waits for one byte with one descriptor, which gets close-on-exec set. Fails if the peer closes
/// without sending one.
pub(crate) fn receive_descriptor(socket: c_int) -> Result<c_int, Errno> {
    let mut control = ControlMessage {
        length: 0,
        level: 0,
        kind: 0,
        descriptors: [-1; MAX_PASSED],
    };
    let flags = libc::MSG_CMSG_CLOEXEC;
    let bytes = size_of::<ControlMessage>();
    transfer_message(libc::SYS_recvmsg, socket, &mut control, bytes, flags)?;
    let [first, ..] = control.descriptors;
    let is_single_descriptor =
        control.length == HEAD_BYTES + size_of::<c_int>() && control.kind == libc::SCM_RIGHTS;
    if is_single_descriptor {
        Ok(first)
    } else {
        Err(libc::EPROTO)
    }
}

fn transfer_message(
    call: i64,
    socket: c_int,
    control: &mut ControlMessage,
    control_bytes: usize,
    flags: c_int,
) -> Result<i32, Errno> {
    let mut byte = 0_u8;
    let mut data = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // The kernel's `msghdr`: name, data, control message, flags.
    let mut head = [
        ptr::null::<u8>() as usize,
        0,
        &raw mut data as usize,
        1,
        ptr::from_mut(control) as usize,
        control_bytes,
        0,
    ];
    let args = [int_arg(socket), head.as_mut_ptr() as usize, int_arg(flags)];
    loop {
        match syscall(call, args) {
            Err(libc::EINTR) => {}
            result => return result.map(to_i32),
        }
    }
}
