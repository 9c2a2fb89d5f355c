//! Probes of other system call entries: 32-bit calls and the x32 ABI.

use std::{io, ptr};

use crate::{
    probe::{Probe, ProbeArgs, ProbeFailure, ProbeResult},
    syscall::{call, describe_child_status, errno, in_child},
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
    // Creates the directory `PATH` by a call that a filter for 64-bit calls does not see.
    ("int80-mkdir", mkdir_by_int80),
    ("x32", |_| {
        in_child_with(|| call!(X32 | libc::SYS_getpid).map(drop))
    }),
    ("x32-ptrace", |_| {
        in_child_with(|| call!(X32 | 521, 0, 0, 0, 0).map(drop))
    }),
];

/// Bit that is set in the numbers of x32 calls.
const X32: i64 = 0x4000_0000;

/// Runs the call in a child, since a filter may kill the caller.
fn in_child_with(attempt: impl FnOnce() -> io::Result<()>) -> ProbeResult {
    let status = in_child(|| errno(attempt()))?;
    Ok(describe_child_status(status)?)
}

fn mkdir_by_int80(args: &ProbeArgs<'_>) -> ProbeResult {
    const MKDIR: i32 = 39;
    let path = args.text(0)?;
    let bytes = path.as_bytes_with_nul();
    if bytes.len() > PAGE {
        return Err(ProbeFailure::Usage);
    }
    let page = low_page()?;
    // SAFETY: the string fits into the page, which nothing else uses.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), page, bytes.len()) };
    let address = i32::try_from(page.expose_provenance()).map_err(|_| ProbeFailure::Usage)?;
    in_child_with(|| int80(MKDIR, address, 0o755))
}

const PAGE: usize = 4096;

/// Maps a page below 4 GiB.
fn low_page() -> io::Result<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | LOW;
    // SAFETY: creates a new mapping at an address that the kernel chooses.
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

/// Makes a call through the 32-bit entry `int 0x80`.
#[cfg(target_arch = "x86_64")]
fn int80(number: i32, first: i32, second: i32) -> io::Result<()> {
    let result: i32;
    // SAFETY: these calls read at most a string that lives as long as the call. The register of the
    // first argument is restored.
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

/// This architecture has no such entry.
#[cfg(not(target_arch = "x86_64"))]
fn int80(_: i32, _: i32, _: i32) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}
