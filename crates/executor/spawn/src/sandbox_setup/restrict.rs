//! Drops privileges and capabilities, and applies Landlock rulesets and seccomp filters.

use std::ffi::c_int;

use super::{SetupFailure, StepCode};
use crate::raw::{self, Errno, int_arg};

/// Version 3 of the capability calls: two words for each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// Allows access to the memory of other processes, which the broker needs.
const CAP_SYS_PTRACE: u32 = 19;
/// Allows raising resource limits, and exempts from some.
const CAP_SYS_RESOURCE: u32 = 24;
/// Upper bound of capability numbers: the size of the kernel's sets.
const MAX_CAPABILITIES: usize = 64;

/// `SECCOMP_FILTER_FLAG_NEW_LISTENER` and `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`. The latter
/// keeps a signal from interrupting a caller while the broker makes its call; the call would be
/// repeated.
const NOTIFY_FLAGS: usize = 1 << 3 | 1 << 5;

/// Prevents exec from granting privileges, for good.
pub(crate) fn set_no_new_privileges() -> Result<(), SetupFailure> {
    raw::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(StepCode::Privileges.failure())?;
    Ok(())
}

/// Enters a Landlock domain.
pub(crate) fn restrict_by_landlock(ruleset: c_int) -> Result<(), SetupFailure> {
    let args = [int_arg(ruleset), 0, 0, 0, 0, 0];
    raw::syscall(libc::SYS_landlock_restrict_self, args).map_err(StepCode::Landlock.failure())?;
    Ok(())
}

/// Drops every capability, now and after any exec.
pub(crate) fn drop_capabilities() -> Result<(), SetupFailure> {
    // Dropping from the bounding set needs a privilege. A process without it gains nothing by exec
    // either, because of `no_new_privs`.
    for capability in 0..MAX_CAPABILITIES {
        if raw::prctl(libc::PR_CAPBSET_DROP, capability).is_err() {
            break;
        }
    }
    // The ambient set is always a subset of the permitted set.
    set_capabilities([CapabilitySets::default(); 2]).map_err(StepCode::Privileges.failure())
}

/// Drops the capability to raise resource limits, now and after an exec. Otherwise root could lift
/// its own limits.
pub(crate) fn forbid_raising_limits() -> Result<(), Errno> {
    let number = CAP_SYS_RESOURCE as usize;
    // An exec as root grants every capability of the bounding set. Other accounts gain capabilities
    // only from programs with file capabilities.
    let is_root = raw::syscall(libc::SYS_geteuid, [0; 6]) == Ok(0);
    if is_root && raw::prctl(libc::PR_CAPBSET_READ, number) != Ok(0) {
        raw::prctl(libc::PR_CAPBSET_DROP, number)?;
    }
    let mut sets = [CapabilitySets::default(); 2];
    capabilities(libc::SYS_capget, sets.as_mut_ptr())?;
    let others = !(1 << CAP_SYS_RESOURCE);
    sets[0].effective &= others;
    sets[0].permitted &= others;
    sets[0].inheritable &= others;
    set_capabilities(sets)
}

/// Keeps only ptrace in the effective set. The permitted set stays, so that a process with fewer
/// capabilities can neither trace nor inspect this one.
pub(crate) fn keep_only_ptrace() -> Result<(), Errno> {
    let mut sets = [CapabilitySets::default(); 2];
    capabilities(libc::SYS_capget, sets.as_mut_ptr())?;
    for set in &mut sets {
        set.effective = 0;
        set.inheritable = 0;
    }
    sets[0].effective = (1 << CAP_SYS_PTRACE) & sets[0].permitted;
    set_capabilities(sets)
}

/// One word of each capability set.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct CapabilitySets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn set_capabilities(mut sets: [CapabilitySets; 2]) -> Result<(), Errno> {
    capabilities(libc::SYS_capset, sets.as_mut_ptr())
}

fn capabilities(call: i64, sets: *mut CapabilitySets) -> Result<(), Errno> {
    // Version, and zero for this process.
    let head = [CAPABILITY_VERSION, 0];
    let args = [head.as_ptr() as usize, sets as usize, 0, 0, 0, 0];
    raw::syscall(call, args).map(|_| ())
}

/// Installs a seccomp program. Returns the listener if `notify` is set.
pub(crate) fn restrict_by_filter(
    program: &[u8],
    notify: bool,
) -> Result<Option<c_int>, SetupFailure> {
    /// The kernel's `sock_fprog`.
    #[repr(C)]
    struct Program {
        length: u16,
        instructions: *const u8,
    }

    let to_failure = StepCode::Filter.failure();
    let program = Program {
        length: u16::try_from(program.len() / 8).map_err(|_| to_failure(libc::E2BIG))?,
        instructions: program.as_ptr(),
    };
    if program.length == 0 {
        return Ok(None);
    }
    let flags = if notify { NOTIFY_FLAGS } else { 0 };
    let mode = libc::SECCOMP_SET_MODE_FILTER as usize;
    let args = [mode, flags, &raw const program as usize, 0, 0, 0];
    let result = raw::syscall(libc::SYS_seccomp, args).map_err(to_failure)?;
    Ok(notify.then_some(raw::to_i32(result)))
}
