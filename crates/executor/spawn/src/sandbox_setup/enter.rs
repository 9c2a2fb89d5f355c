//! Applies a sandbox set-up to the calling process, and the operations that this takes: setting up
//! new namespaces, and restrictions that a process cannot undo.

use std::{
    ffi::{CStr, c_int},
    io,
};

use super::{
    EncodedSetup, GuardWatch, MountView, SandboxSetup, SetupFailure, SetupStep, StepCode,
    make_mounts_private, open_outer_proc, send_listener,
};
use crate::raw::{self, Errno, NumberText, int_arg};

/// Puts this process, which must have a single thread, into a sandbox for good.
///
/// A new pid namespace is not created, even if requested; the outer procfs is mounted read-only
/// instead. With guards the process forks: the call returns in the child, while the parent runs the
/// broker. Either dies with the other.
///
/// After an error the process is only partly sandboxed and should exit.
pub fn enter_sandbox(setup: SandboxSetup) -> Result<(), EnterSandboxError> {
    let bytes = setup.encode();
    let named = |failure: SetupFailure| {
        let steps = setup.namespaces.as_ref().map(|one| &one.steps[..]);
        EnterSandboxError {
            part: SetupStep::new(failure.step, steps.unwrap_or_default(), &setup.guards),
            source: io::Error::from_raw_os_error(failure.errno),
        }
    };
    let parts = EncodedSetup::parse(&bytes)
        .ok_or(StepCode::Namespaces.failure()(libc::EINVAL))
        .map_err(named)?;
    let mut fds = [-1; 2];
    let (landlock, listener_socket) = parts.descriptors();
    let present = [landlock, listener_socket];
    let mut descriptors = setup.descriptors().into_iter();
    for (fd, present) in fds.iter_mut().zip(present) {
        if present && let Some(descriptor) = descriptors.next() {
            *fd = std::os::fd::AsRawFd::as_raw_fd(&descriptor);
        }
    }
    apply(&parts, fds).map_err(named)
}

/// Why a process could not enter its sandbox.
#[derive(Debug, thiserror::Error)]
#[error("cannot {part}")]
pub struct EnterSandboxError {
    /// The failed step.
    pub part: SetupStep,
    /// The cause.
    #[source]
    pub source: io::Error,
}

fn apply(
    parts: &EncodedSetup<'_>,
    [landlock, listener_socket]: [c_int; 2],
) -> Result<(), SetupFailure> {
    let mut watch = None;
    if let Some(namespaces) = parts.namespaces() {
        let account = current_account();
        let to_failure = StepCode::Namespaces.failure();
        let processes = open_outer_proc().map_err(&to_failure)?;
        let mut flags = libc::CLONE_NEWNS | libc::CLONE_NEWIPC;
        if namespaces.user {
            flags |= libc::CLONE_NEWUSER;
        }
        if namespaces.network {
            flags |= libc::CLONE_NEWNET;
        }
        let args = [raw::int_arg(flags)];
        raw::syscall(libc::SYS_unshare, args).map_err(&to_failure)?;
        if namespaces.user {
            map_account(account.0, account.1).map_err(StepCode::Account.failure())?;
        }
        if namespaces.network {
            set_up_network(parts, listener_socket).map_err(StepCode::Network.failure())?;
        }
        make_mounts_private().map_err(&to_failure)?;
        let umask = set_umask(0);
        let mut view = MountView::new(false);
        let result = view.build(parts);
        set_umask(umask);
        view.close();
        result?;
        watch = GuardWatch::open(parts, processes)?;
        if watch.is_none() {
            let _ = raw::close(processes);
        }
    }
    let mut listener_to = None;
    if let Some(watch) = watch {
        listener_to = Some(watch.command_socket());
        fork_guarded(watch)?;
    }
    set_no_new_privileges()?;
    if landlock >= 0 {
        restrict_by_landlock(landlock)?;
    }
    drop_capabilities()?;
    let listener = restrict_by_filter(parts.filter(), listener_to.is_some())?;
    match (listener, listener_to) {
        (Some(listener), Some(watch)) => send_listener(listener, watch),
        _ => Ok(()),
    }
}

/// Forks. Returns in the child; the parent stays and runs the broker.
fn fork_guarded(watch: GuardWatch) -> Result<(), SetupFailure> {
    let to_failure = StepCode::Guard(u32::MAX).failure();
    let own = raw::pidfd_open(raw::getpid()).map_err(&to_failure)?;
    // SAFETY: this process has a single thread, so no lock is held in the child.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(to_failure(libc::EAGAIN));
    }
    if child > 0 {
        serve_until_exit(watch, child);
    }
    raw::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize).map_err(&to_failure)?;
    if raw::pidfd_has_exited(own) {
        raw::exit(1);
    }
    let _ = raw::close(own);
    watch.close_own_side();
    Ok(())
}

fn serve_until_exit(mut watch: GuardWatch, child: c_int) -> ! {
    let wait_and_exit = || -> ! {
        let code = raw::wait_for(child);
        let code = if libc::WIFEXITED(code) {
            libc::WEXITSTATUS(code)
        } else {
            1
        };
        raw::exit(code)
    };
    // Fails if the child exited before it installed the filter.
    if watch.receive_listener().is_err() {
        wait_and_exit();
    }
    let Ok(wake) = raw::pidfd_open(child) else {
        let _ = raw::kill(child, libc::SIGKILL);
        wait_and_exit()
    };
    watch.close_others([wake]);
    let _ = keep_only_ptrace();
    watch.serve(wake, || true);
    wait_and_exit()
}

/// Maps the account to the same ids inside the user namespace.
pub(crate) fn map_account(user: u32, group: u32) -> Result<(), Errno> {
    write_file(c"/proc/self/uid_map", &id_map_line(user))?;
    // Without privileges, the kernel allows a group mapping only after `setgroups` is denied.
    write_file(c"/proc/self/setgroups", b"deny")?;
    write_file(c"/proc/self/gid_map", &id_map_line(group))
}

/// Returns the user id and group id of this process.
pub(crate) fn current_account() -> (u32, u32) {
    let number = |call| {
        let number = raw::syscall(call, []).unwrap_or(0);
        u32::try_from(number).unwrap_or(0)
    };
    (number(libc::SYS_geteuid), number(libc::SYS_getegid))
}

/// Sets the umask and returns the previous one.
pub(crate) fn set_umask(mask: u32) -> u32 {
    let old = raw::syscall(libc::SYS_umask, [mask as usize]);
    old.map_or(0o22, |old| u32::try_from(old).unwrap_or(0o22))
}

/// Formats `id id 1`, padded with leading spaces, which the kernel skips.
fn id_map_line(number: u32) -> [u8; 24] {
    let mut line = [b' '; 24];
    let digits = NumberText::decimal(u64::from(number));
    let digits = digits.text().to_bytes();
    for end in [10, 21] {
        for (byte, digit) in line[..end].iter_mut().rev().zip(digits.iter().rev()) {
            *byte = *digit;
        }
    }
    line[22] = b'1';
    line[23] = b'\n';
    line
}

fn write_file(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    let flags = int_arg(libc::O_WRONLY | libc::O_CLOEXEC);
    let args = [int_arg(libc::AT_FDCWD), path.as_ptr() as usize, flags];
    let file = raw::to_i32(raw::syscall(libc::SYS_openat, args)?);
    let args = [int_arg(file), text.as_ptr() as usize, text.len()];
    let written = raw::syscall(libc::SYS_write, args);
    raw::close(file)?;
    written.map(|_| ())
}

/// Most listening sockets. The kernel limits the descriptors in one message.
const MAX_LISTENERS: usize = 64;
/// Length of the accept queue.
const BACKLOG: c_int = 1024;

/// Brings the loopback interface up and sends the listening sockets to the server.
pub(crate) fn set_up_network(
    parts: &EncodedSetup<'_>,
    listener_socket: c_int,
) -> Result<(), Errno> {
    bring_loopback_up()?;
    let mut sockets = [0; MAX_LISTENERS];
    let mut count = 0;
    for port in parts.ports() {
        let slot = sockets.get_mut(count).ok_or(libc::E2BIG)?;
        *slot = listen(port)?;
        count += 1;
    }
    let sockets = &sockets[..count];
    if !sockets.is_empty() {
        raw::send_descriptors(listener_socket, sockets)?;
    }
    for socket in sockets {
        raw::close(*socket)?;
    }
    Ok(())
}

fn bring_loopback_up() -> Result<(), Errno> {
    // The kernel's `ifreq`: a name of 16 bytes, followed by flags.
    let mut request = [0_u8; size_of::<libc::ifreq>()];
    request[..2].copy_from_slice(b"lo");
    let flags = u16::try_from(libc::IFF_UP).unwrap_or(0);
    request[libc::IFNAMSIZ..libc::IFNAMSIZ + 2].copy_from_slice(&flags.to_ne_bytes());
    let socket = socket(libc::AF_UNIX, libc::SOCK_DGRAM)?;
    let command = usize::try_from(libc::SIOCSIFFLAGS).unwrap_or(0);
    let args = [int_arg(socket), command, request.as_ptr() as usize];
    let result = raw::syscall(libc::SYS_ioctl, args);
    raw::close(socket)?;
    result.map(|_| ())
}

fn listen(port: u16) -> Result<c_int, Errno> {
    let socket = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let [high, low] = port.to_be_bytes();
    let [family, zero] = u16::try_from(libc::AF_INET).unwrap_or(0).to_ne_bytes();
    // The kernel's `sockaddr_in`: family, port, address, and eight bytes of padding.
    let address = [
        family, zero, high, low, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let pointer = address.as_ptr() as usize;
    raw::syscall(libc::SYS_bind, [int_arg(socket), pointer, address.len()])?;
    raw::syscall(libc::SYS_listen, [int_arg(socket), int_arg(BACKLOG)])?;
    Ok(socket)
}

fn socket(family: c_int, kind: c_int) -> Result<c_int, Errno> {
    let kind = int_arg(kind | libc::SOCK_CLOEXEC);
    raw::syscall(libc::SYS_socket, [int_arg(family), kind, 0]).map(raw::to_i32)
}

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
    let args = [int_arg(ruleset), 0];
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
    let is_root = raw::syscall(libc::SYS_geteuid, []) == Ok(0);
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
    let args = [head.as_ptr() as usize, sets as usize];
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
    let args = [mode, flags, &raw const program as usize];
    let result = raw::syscall(libc::SYS_seccomp, args).map_err(to_failure)?;
    Ok(notify.then_some(raw::to_i32(result)))
}
