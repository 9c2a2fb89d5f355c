//! Enclosing the process that asks for it.

use std::{ffi::c_int, io};

use super::{
    Enclosure, EncodedSetup, GuardWatch, MountView, SetupFailure, SetupStep, StepCode,
    current_account, drop_capabilities, make_mounts_private, map_account, open_outer_proc,
    restrict_by_filter, restrict_by_landlock, send_listener, set_no_new_privileges, set_umask,
    set_up_network,
};
use crate::raw;

/// Encloses this process, which has one thread only, for good.
///
/// There is no namespace of processes even if one is asked for; where its view would be, there is
/// the one outside, read-only. With guards the process forks: the call returns in the child, and the parent
/// answers for the guards and ends when the child does, as the child does with it.
///
/// An error leaves a process that is enclosed in part; it should end.
pub fn enter(enclosure: Enclosure) -> Result<(), EnterError> {
    let bytes = enclosure.encode();
    let named = |failure: SetupFailure| {
        let steps = enclosure.namespaces.as_ref().map(|one| &one.steps[..]);
        EnterError {
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

/// Why a process is not enclosed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {part}")]
pub struct EnterError {
    /// What the host refused.
    pub part: SetupStep,
    /// Why.
    #[source]
    pub source: io::Error,
}

fn apply(parts: &EncodedSetup<'_>, [landlock, door]: [c_int; 2]) -> Result<(), SetupFailure> {
    let mut watch = None;
    if let Some(namespaces) = parts.namespaces() {
        let account = current_account();
        let refused = StepCode::Namespaces.failure();
        let processes = open_outer_proc().map_err(&refused)?;
        let mut flags = libc::CLONE_NEWNS | libc::CLONE_NEWIPC;
        if namespaces.user {
            flags |= libc::CLONE_NEWUSER;
        }
        if namespaces.network {
            flags |= libc::CLONE_NEWNET;
        }
        let args = [raw::int_arg(flags), 0, 0, 0, 0, 0];
        raw::syscall(libc::SYS_unshare, args).map_err(&refused)?;
        if namespaces.user {
            map_account(account.0, account.1).map_err(StepCode::Account.failure())?;
        }
        if namespaces.network {
            set_up_network(parts, door).map_err(StepCode::Network.failure())?;
        }
        make_mounts_private().map_err(&refused)?;
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

/// Returns in a child; the parent stays to answer for it.
fn fork_guarded(watch: GuardWatch) -> Result<(), SetupFailure> {
    let refused = StepCode::Guard(u32::MAX).failure();
    let own = raw::pidfd_open(raw::getpid()).map_err(&refused)?;
    // SAFETY: this process has one thread, so that nothing is locked in the child.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(refused(libc::EAGAIN));
    }
    if child > 0 {
        serve_until_exit(watch, child);
    }
    raw::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize).map_err(&refused)?;
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
    // Fails if the child ended before it had a listener.
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
