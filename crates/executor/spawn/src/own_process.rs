//! Memory and descriptors of the process that links this crate.

use std::{ffi::c_void, fs};

use rustix::mm::{Advice, madvise};

use crate::raw;

/// Returns all free pages of the allocator to the kernel. glibc keeps free pages below a page in
/// use, so that a burst of connections would cost its peak forever. Takes milliseconds for some
/// hundred megabytes, and may block other threads that long. Does nothing with another C library.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: no precondition; the allocator takes its own locks.
        let _released = unsafe { libc::malloc_trim(0) };
    }
}

/// Marks every descriptor except the standard ones close-on-exec, so that programs started from now
/// on do not inherit what this process's parent left open.
///
/// Needs Linux 5.11; on older kernels nothing changes.
pub fn set_descriptors_close_on_exec() {
    if let Err(error) = raw::close_range_on_exec(3, i32::MAX) {
        tracing::debug!(
            error,
            "failed to set close-on-exec: programs inherit descriptors"
        );
    }
}

/// Discards the resident pages of this program's code. Code that is still needed is mapped again
/// from the page cache when it runs; start-up code is not. Does nothing if `/proc` cannot be read.
pub fn discard_startup_code() {
    let (Ok(maps), Ok(program)) = (
        fs::read_to_string("/proc/self/maps"),
        fs::read_link("/proc/self/exe"),
    ) else {
        return;
    };
    let program = program.to_string_lossy();
    for (start, end) in maps.lines().filter_map(|line| code(line, &program)) {
        // SAFETY: the mapping is this program's code, which is never written. Its pages come from
        // the file, and the next access maps them again.
        let advised = unsafe {
            madvise(
                std::ptr::with_exposed_provenance_mut::<c_void>(start),
                end - start,
                Advice::LinuxDontNeed,
            )
        };
        if let Err(error) = advised {
            tracing::debug!(%error, "failed to discard start-up code");
        }
    }
}

/// Returns the address range of a line of `/proc/self/maps` if it maps code of `program`: readable,
/// executable, private, and not writable.
fn code(line: &str, program: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, permissions) = (fields.next()?, fields.next()?);
    let path = line.find('/').map(|start| &line[start..])?;
    if permissions != "r-xp" || path != program {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(start)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_this_program_is_matched() {
        let found = |line| code(line, "/bin/program");
        let line = "5581-5599 r-xp 00001000 fe:00 123    /bin/program";
        assert_eq!(found(line), Some((0x5581, 0x5599)));
        for other in [
            "5581-5599 r--p 00001000 fe:00 123    /bin/program",
            "5581-5599 rwxp 00001000 fe:00 123    /bin/program",
            "5581-5599 r-xp 00001000 fe:00 123    /lib/libc.so.6",
            "5581-5599 r-xp 00001000 fe:00 123    /bin/program (deleted)",
            "5581-5599 r-xp 00000000 00:00 0 ",
            "",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn program_runs_after_discarding_startup_code() {
        discard_startup_code();
        assert_eq!((1..=10).sum::<u32>(), 55);
    }
}
