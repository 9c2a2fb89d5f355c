//! Enclosing the process that asks for it.

use std::{ffi::c_int, io};

use super::{
    At, Enclosure, Part, Parts, Refusal, View, Watch, drop_capabilities, forbid_privileges,
    make_private, map_account, open_network, open_outside_processes, own_account, pass_listener,
    restrict_by_filter, restrict_by_landlock, set_umask,
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
    let named = |refusal: Refusal| {
        let steps = enclosure.namespaces.as_ref().map(|one| &one.steps[..]);
        EnterError {
            part: Part::new(refusal.at, steps.unwrap_or_default(), &enclosure.guards),
            source: io::Error::from_raw_os_error(refusal.errno),
        }
    };
    let parts = Parts::parse(&bytes)
        .ok_or(At::Namespaces.refused()(libc::EINVAL))
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
    pub part: Part,
    /// Why.
    #[source]
    pub source: io::Error,
}

fn apply(parts: &Parts<'_>, [landlock, door]: [c_int; 2]) -> Result<(), Refusal> {
    let mut watch = None;
    if let Some(namespaces) = parts.namespaces() {
        let account = own_account();
        let refused = At::Namespaces.refused();
        let processes = open_outside_processes().map_err(&refused)?;
        let mut flags = libc::CLONE_NEWNS | libc::CLONE_NEWIPC;
        if namespaces.user {
            flags |= libc::CLONE_NEWUSER;
        }
        if namespaces.network {
            flags |= libc::CLONE_NEWNET;
        }
        let args = [raw::int(flags), 0, 0, 0, 0, 0];
        raw::numbers(libc::SYS_unshare, args).map_err(&refused)?;
        if namespaces.user {
            map_account(account.0, account.1).map_err(At::Account.refused())?;
        }
        if namespaces.network {
            open_network(parts, door).map_err(At::Network.refused())?;
        }
        make_private().map_err(&refused)?;
        let umask = set_umask(0);
        let mut view = View::new(false);
        let made = view.make(parts);
        set_umask(umask);
        view.close();
        made?;
        watch = Watch::open(parts, processes)?;
        if watch.is_none() {
            let _ = raw::close(processes);
        }
    }
    let mut listener_to = None;
    if let Some(watch) = watch {
        listener_to = Some(watch.theirs());
        fork_watched(watch)?;
    }
    forbid_privileges()?;
    if landlock >= 0 {
        restrict_by_landlock(landlock)?;
    }
    drop_capabilities()?;
    let listener = restrict_by_filter(parts.filter(), listener_to.is_some())?;
    match (listener, listener_to) {
        (Some(listener), Some(watch)) => pass_listener(listener, watch),
        _ => Ok(()),
    }
}

/// Returns in a child; the parent stays to answer for it.
fn fork_watched(watch: Watch) -> Result<(), Refusal> {
    let refused = At::Guard(u32::MAX).refused();
    let own = raw::pidfd_open(raw::getpid()).map_err(&refused)?;
    // SAFETY: this process has one thread, so that nothing is locked in the child.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(refused(libc::EAGAIN));
    }
    if child > 0 {
        attend(watch, child);
    }
    raw::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize).map_err(&refused)?;
    if raw::has_ended(own) {
        raw::exit(1);
    }
    let _ = raw::close(own);
    watch.close_ours();
    Ok(())
}

fn attend(mut watch: Watch, child: c_int) -> ! {
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
    if watch.receive().is_err() {
        ended();
    }
    let Ok(wake) = raw::pidfd_open(child) else {
        let _ = raw::kill(child, libc::SIGKILL);
        ended()
    };
    watch.close_others([wake]);
    let _ = super::keep_only_tracing();
    watch.attend(wake, || true);
    ended()
}
