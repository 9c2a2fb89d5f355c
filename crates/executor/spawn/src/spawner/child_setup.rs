//! Between clone and exec: the child becomes the command. Nothing here allocates, locks or returns.

use std::{
    ffi::{c_char, c_int, c_void},
    sync::atomic::Ordering::SeqCst,
};

use super::{
    Stage,
    command_spec::MAX_EXTRA,
    job::Job,
    start_progress::{self, Failure},
};
use crate::{
    enclosure::{
        Parts, drop_capabilities, forbid_privileges, forbid_raising_limits, pass_listener,
        restrict_by_filter, restrict_by_landlock, set_umask,
    },
    raw::{self, Errno},
};

/// Entry of the child. Its parent is suspended until it has become the command, or has failed.
pub(super) extern "C" fn enter(argument: *mut c_void) -> c_int {
    // SAFETY: the parent passes its job, which outlives the child. It is written to by atomics only.
    let job = unsafe { &*argument.cast::<Job>() };
    let failure = match prepare(job) {
        Ok(()) => start_progress::at(Stage::Exec)(become_command(job)),
        Err(failure) => failure,
    };
    job.progress.fail(failure);
    raw::exit(127)
}

fn prepare(job: &Job) -> Result<(), Failure> {
    let setup = start_progress::at(Stage::Setup);
    // If the supervisor is killed, so is the command.
    raw::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize).map_err(&setup)?;
    raw::setsid().map_err(&setup)?;
    let enclosure = job.enclosure();
    if let Some(parts) = &enclosure {
        if parts.namespaces().is_some() {
            leave_init(job).map_err(&setup)?;
        }
        forbid_privileges().map_err(start_progress::refused)?;
        // Before its descriptor is closed. Nothing is opened by path between here and exec.
        if job.landlock >= 0 {
            restrict_by_landlock(job.landlock).map_err(start_progress::refused)?;
        }
    }
    let watch = place_descriptors(job).map_err(&setup)?;
    if job.terminal {
        raw::set_controlling_terminal(0).map_err(&setup)?;
    }
    raw::chdir(job.cwd).map_err(start_progress::at(Stage::Chdir))?;
    for &(resource, value) in &job.limits[..job.limit_count] {
        raw::set_limit(resource, value).map_err(start_progress::at(Stage::Limit))?;
    }
    if job.limit_count > 0 {
        forbid_raising_limits().map_err(start_progress::at(Stage::Limit))?;
    }
    raw::unblock_signals().map_err(&setup)?;
    match enclosure {
        Some(parts) => give_up(&parts, watch),
        None => Ok(()),
    }
}

/// Takes back what init changed for itself, and tells which number the command has outside.
fn leave_init(job: &Job) -> Result<(), Errno> {
    let for_child = &job.progress.for_child;
    set_umask(for_child.umask.load(SeqCst));
    let [soft, hard] = &for_child.open_files;
    raw::set_open_files([soft.load(SeqCst), hard.load(SeqCst)])?;
    let mut own = [0; 16];
    let outside = for_child.outside.load(SeqCst);
    let length = raw::read_link(outside, c"self", &mut own)?;
    let number = raw::leading_number(&own[..length]).ok_or(libc::ESRCH)?;
    job.progress.set_command(number);
    Ok(())
}

/// Gives up what is still needed up to here. The filter is the last: it holds for this process, too.
fn give_up(parts: &Parts<'_>, watch: Option<c_int>) -> Result<(), Failure> {
    drop_capabilities().map_err(start_progress::refused)?;
    let listener =
        restrict_by_filter(parts.filter(), watch.is_some()).map_err(start_progress::refused)?;
    if let (Some(listener), Some(watch)) = (listener, watch) {
        pass_listener(listener, watch).map_err(start_progress::refused)?;
    }
    Ok(())
}

/// Puts every descriptor on its number and closes all others, but for the one that a listener is
/// passed to, which is closed on exec.
fn place_descriptors(job: &Job) -> Result<Option<c_int>, Errno> {
    let mut standard = job.standard;
    let mut extra = job.extra;
    let targets = extra[..job.extra_count].iter().map(|(_, target)| *target);
    // Descriptors are moved above all targets, and no higher: the limit of open files may be low.
    let above_targets = targets.max().unwrap_or(2).max(2) + 1;
    // Only numbers among the targets can be in the way of another; they are low or few.
    for fd in &mut standard {
        if *fd <= 2 {
            *fd = raw::dup_above(*fd, above_targets)?;
        }
    }
    for (fd, _) in &mut extra[..job.extra_count] {
        *fd = raw::dup_above(*fd, above_targets)?;
    }
    let mut kept = [-1; MAX_EXTRA + 1];
    for (kept, (_, target)) in kept.iter_mut().zip(&extra[..job.extra_count]) {
        *kept = *target;
    }
    let mut watch = job.progress.for_child.watch.load(SeqCst);
    while watch >= 0 && (watch <= 2 || kept[..job.extra_count].contains(&watch)) {
        watch = raw::dup_above(watch, watch + 1)?;
    }
    kept[MAX_EXTRA] = watch;
    for (target, fd) in (0..).zip(standard) {
        raw::dup2(fd, target)?;
    }
    for &(fd, target) in &extra[..job.extra_count] {
        raw::dup2(fd, target)?;
    }
    // Close everything between and above the targets, lowest target first.
    let mut first_free = 3;
    loop {
        let next = kept.iter().copied();
        match next.filter(|target| *target >= first_free).min() {
            Some(target) => {
                if target > first_free {
                    raw::close_range(first_free, target - 1)?;
                }
                first_free = target + 1;
            }
            None => {
                raw::close_range(first_free, c_int::MAX)?;
                return Ok((watch >= 0).then_some(watch));
            }
        }
    }
}

/// Tries every candidate, as `execvp` does. Returns only failures.
fn become_command(job: &Job) -> Errno {
    let mut refused = None;
    let mut candidate = job.candidates;
    loop {
        // SAFETY: the table ends in a null, where the loop ends.
        let path = unsafe { *candidate };
        if path.is_null() {
            return refused.unwrap_or(libc::ENOENT);
        }
        match raw::execve(path, job.argv, job.env) {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => refused = Some(libc::EACCES),
            libc::ENOEXEC => return run_by_shell(job, path),
            errno => return errno,
        }
        // SAFETY: the place behind one that is not null is in the table.
        candidate = unsafe { candidate.add(1) };
    }
}

/// A text without `#!` is a script of the shell's.
fn run_by_shell(job: &Job, script: *const c_char) -> Errno {
    // SAFETY: the table has a place for the script behind the shell's name.
    let place = unsafe { job.shell_argv.add(1) };
    // SAFETY: the place belongs to this job, and the script's name outlives it.
    unsafe { place.write(script) };
    raw::execve(c"/bin/sh".as_ptr(), job.shell_argv, job.env)
}
