//! Giving things up: privileges, capabilities, what a ruleset and a filter forbid.

use std::ffi::c_int;

use super::{SetupFailure, StepCode};
use crate::raw::{self, Errno, int_arg};

/// Third version of the capability calls: two words of each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// Reads and writes the memory of others: what answering for guards needs.
const CAP_SYS_PTRACE: u32 = 19;
/// Raises resource limits, and is exempt from some.
const CAP_SYS_RESOURCE: u32 = 24;
/// No kernel knows more capabilities than fit its sets.
const MAX_CAPABILITIES: usize = 64;

/// `SECCOMP_FILTER_FLAG_NEW_LISTENER`, and `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`: a caller whose call
/// is being done for it is not woken by a signal, or it would ask again for what was made already.
const NOTIFY_FLAGS: usize = 1 << 3 | 1 << 5;

/// Keeps exec from giving privileges, for good.
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

/// Gives up every capability, now and after any exec.
pub(crate) fn drop_capabilities() -> Result<(), SetupFailure> {
    // Taking from the bounding set is a privilege itself. Who lacks it gains nothing by exec
    // either: that privileges are forbidden sees to it.
    for capability in 0..MAX_CAPABILITIES {
        if raw::prctl(libc::PR_CAPBSET_DROP, capability).is_err() {
            break;
        }
    }
    // The ambient set cannot hold what the permitted one does not.
    set_capabilities([CapabilitySets::default(); 2]).map_err(StepCode::Privileges.failure())
}

/// Gives up the capability to raise resource limits, now and after an exec. A root that kept it could
/// lift the limits it was given.
pub(crate) fn forbid_raising_limits() -> Result<(), Errno> {
    let number = CAP_SYS_RESOURCE as usize;
    // An exec as root gives every capability of the bounding set. Other accounts gain none by exec but
    // through programs that the machine's owner made to give them.
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

/// Makes reading the memory of others the only capability in force. The permitted ones stay: who
/// has fewer can neither trace this process nor look into it.
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

/// One word of each set.
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
    // Version, and whose: this process's.
    let head = [CAPABILITY_VERSION, 0];
    let args = [head.as_ptr() as usize, sets as usize, 0, 0, 0, 0];
    raw::syscall(call, args).map(|_| ())
}

/// Installs a program of seccomp, and returns where it notifies if it is to.
pub(crate) fn restrict_by_filter(
    program: &[u8],
    notify: bool,
) -> Result<Option<c_int>, SetupFailure> {
    /// As the kernel reads it.
    #[repr(C)]
    struct Program {
        length: u16,
        instructions: *const u8,
    }

    let refused = StepCode::Filter.failure();
    let program = Program {
        length: u16::try_from(program.len() / 8).map_err(|_| refused(libc::E2BIG))?,
        instructions: program.as_ptr(),
    };
    if program.length == 0 {
        return Ok(None);
    }
    let flags = if notify { NOTIFY_FLAGS } else { 0 };
    let mode = libc::SECCOMP_SET_MODE_FILTER as usize;
    let args = [mode, flags, &raw const program as usize, 0, 0, 0];
    let result = raw::syscall(libc::SYS_seccomp, args).map_err(refused)?;
    Ok(notify.then_some(raw::to_i32(result)))
}
