//! Memory and descriptors of the process that links this crate.

use std::{ffi::c_void, fs};

use rustix::mm::{Advice, madvise};

use crate::raw;

/// Has the allocator give back every free page. By itself it keeps those below a page that is in
/// use, so that a burst of connections would cost its peak for ever. Takes milliseconds for some
/// hundred megabytes, and other threads may wait for that long. With another C library than glibc
/// nothing happens.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: no precondition; the allocator locks what it looks at.
        let _something_was_released = unsafe { libc::malloc_trim(0) };
    }
}

/// Keeps every descriptor but the standard ones from the programs that this process starts from now on, those
/// included that whoever started this process has left open. In this process they stay as they are.
///
/// A kernel that does not know how (before Linux 5.11) passes on what it would have passed on.
pub fn keep_descriptors_from_programs() {
    if let Err(error) = raw::close_range_on_exec(3, i32::MAX) {
        tracing::debug!(error, "descriptors are passed on to programs");
    }
}

/// Unmaps the pages of this program's own code. What is still needed comes back from the page cache,
/// page by page, when it runs; reading the command line, the configuration and the relocations does
/// not run again. Where that cannot be done nothing changes.
pub fn give_back_startup_code() {
    let (Ok(maps), Ok(program)) = (
        fs::read_to_string("/proc/self/maps"),
        fs::read_link("/proc/self/exe"),
    ) else {
        return;
    };
    let program = program.to_string_lossy();
    for (start, end) in maps.lines().filter_map(|line| code(line, &program)) {
        // SAFETY: the mapping is our own code, which is never written: its pages are those of the
        // file, and the next access maps them again.
        let advised = unsafe {
            madvise(
                std::ptr::with_exposed_provenance_mut::<c_void>(start),
                end - start,
                Advice::LinuxDontNeed,
            )
        };
        if let Err(error) = advised {
            tracing::debug!(%error, "start-up code stays mapped");
        }
    }
}

/// Returns where a line of the maps says that code of `program` is: readable, executable, private,
/// and not writable.
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
    fn only_our_own_code_is_found() {
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
    fn a_program_runs_on_without_its_startup_code() {
        give_back_startup_code();
        assert_eq!((1..=10).sum::<u32>(), 55);
    }
}
