//! Other doors into the kernel: the calls of 32-bit programs, and those of the x32 ABI.

use std::{io, ptr};

use crate::{
    attempt::{Args, Attempt, Failure, Probe},
    call::{call, errno, in_child, verdict_of},
};

pub(crate) const PROBES: &[(&str, Probe)] = &[
    ("int80", |_| {
        const GETPID: i32 = 20;
        in_child_with(|| int80(GETPID, 0, 0))
    }),
    ("int80-ptrace", |_| {
        const PTRACE: i32 = 26;
        in_child_with(|| int80(PTRACE, 0, 0))
    }),
    // Makes a directory, which a filter of 64-bit calls would not see: `PATH`.
    ("int80-mkdir", int80_mkdir),
    ("x32", |_| {
        in_child_with(|| call!(X32 | libc::SYS_getpid).map(drop))
    }),
    ("x32-ptrace", |_| {
        in_child_with(|| call!(X32 | 521, 0, 0, 0, 0).map(drop))
    }),
];

/// What the numbers of x32 calls have set.
const X32: i64 = 0x4000_0000;

/// A filter may kill whoever tries.
fn in_child_with(attempt: impl FnOnce() -> io::Result<()>) -> Attempt {
    let status = in_child(|| errno(attempt()))?;
    Ok(verdict_of(status)?)
}

fn int80_mkdir(args: &Args<'_>) -> Attempt {
    const MKDIR: i32 = 39;
    let path = args.text(0)?;
    let bytes = path.as_bytes_with_nul();
    if bytes.len() > PAGE {
        return Err(Failure::Usage);
    }
    let page = low_page()?;
    // SAFETY: the page has room for it, and nothing else uses the page.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), page, bytes.len()) };
    let address = i32::try_from(page.expose_provenance()).map_err(|_| Failure::Usage)?;
    in_child_with(|| int80(MKDIR, address, 0o755))
}

const PAGE: usize = 4096;

/// Maps a page that 32 bits can name.
fn low_page() -> io::Result<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | LOW;
    // SAFETY: a new mapping, where the kernel finds room.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, access, kind, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(page.cast())
}

#[cfg(target_arch = "x86_64")]
const LOW: i32 = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const LOW: i32 = 0;

/// Makes a call by the door of 32-bit programs.
#[cfg(target_arch = "x86_64")]
fn int80(number: i32, first: i32, second: i32) -> io::Result<()> {
    let result: i32;
    // SAFETY: the calls made so read at most a string that lives as long as the call. The register
    // that holds the first argument is given back as it was.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {first}",
            "int 0x80",
            "xchg rbx, {first}",
            first = inout(reg) i64::from(first) => _,
            inlateout("eax") number => result,
            in("ecx") second,
            in("edx") 0,
            in("esi") 0,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(())
}

/// There is no such door here.
#[cfg(not(target_arch = "x86_64"))]
fn int80(_: i32, _: i32, _: i32) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}
