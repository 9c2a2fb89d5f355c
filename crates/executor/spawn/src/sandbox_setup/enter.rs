//! Applies a sandbox set-up to the calling process.

use std::{ffi::c_int, io};

use super::{
    EncodedSetup, GuardWatch, MountView, SandboxSetup, SetupFailure, SetupStep, StepCode,
    current_account, drop_capabilities, make_mounts_private, map_account, open_outer_proc,
    restrict_by_filter, restrict_by_landlock, send_listener, set_no_new_privileges, set_umask,
    set_up_network,
};
use crate::raw;

/// Puts this process, which must have a single thread, into a sandbox for good.
///
/// A new pid namespace is not created, even if requested; the outer procfs is mounted read-only
/// instead. With guards the process forks: the call returns in the child, while the parent runs the
/// broker. Either dies with the other.
///
/// After an error the process is only partly sandboxed and should exit.
pub fn enter_sandbox(enclosure: SandboxSetup) -> Result<(), EnterSandboxError> {
    let bytes = enclosure.encode();
    let named = |failure: SetupFailure| {
        let steps = enclosure.namespaces.as_ref().map(|one| &one.steps[..]);
        EnterSandboxError {
            part: SetupStep::new(failure.step, steps.unwrap_or_default(), &enclosure.guards),
            source: io::Error::from_raw_os_error(failure.errno),
        }
    };
    let parts = EncodedSetup::parse(&bytes)
        .ok_or(StepCode::Namespaces.failure()(libc::EINVAL))
        .map_err(named)?;
    let mut fds = [-1; 2];
    let (landlock, door) = parts.descriptors();
    let present = [landlock, door];
    let mut given = enclosure.descriptors().into_iter();
    for (place, present) in fds.iter_mut().zip(present) {
        if present && let Some(fd) = given.next() {
            *place = std::os::fd::AsRawFd::as_raw_fd(&fd);
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

fn apply(parts: &EncodedSetup<'_>, [landlock, door]: [c_int; 2]) -> Result<(), SetupFailure> {
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
        let args = [raw::int_arg(flags), 0, 0, 0, 0, 0];
        raw::syscall(libc::SYS_unshare, args).map_err(&to_failure)?;
        if namespaces.user {
            map_account(account.0, account.1).map_err(StepCode::Account.failure())?;
        }
        if namespaces.network {
            set_up_network(parts, door).map_err(StepCode::Network.failure())?;
        }
        make_mounts_private().map_err(&to_failure)?;
        let umask = set_umask(0);
        let mut view = MountView::new(false);
        let made = view.build(parts);
        set_umask(umask);
        view.close();
        made?;
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
    let ended = || -> ! {
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
        ended();
    }
    let Ok(wake) = raw::pidfd_open(child) else {
        let _ = raw::kill(child, libc::SIGKILL);
        ended()
    };
    watch.close_others([wake]);
    let _ = super::keep_only_ptrace();
    watch.serve(wake, || true);
    ended()
}
