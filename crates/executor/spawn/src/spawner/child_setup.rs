//! Turns a cloned child into the command, between clone and exec.
//!
//! Invariant: nothing here allocates, locks or returns.

use std::{
    ffi::{c_char, c_int, c_void},
    sync::atomic::Ordering::SeqCst,
};

use super::{
    SpawnStage,
    command_spec::MAX_EXTRA,
    job::{self, CommandJob, StartFailure},
};
use crate::{
    raw::{self, Errno},
    sandbox_setup::{
        EncodedSetup, drop_capabilities, forbid_raising_limits, restrict_by_filter,
        restrict_by_landlock, send_listener, set_no_new_privileges, set_umask,
    },
};

/// Entry point of the child. Its parent is suspended until exec succeeds or the child exits.
pub(super) extern "C" fn enter(argument: *mut c_void) -> c_int {
    // SAFETY: the parent passes its job, which outlives the child and is written through atomics
    // only.
    let job = unsafe { &*argument.cast::<CommandJob>() };
    let failure = match prepare(job) {
        Ok(()) => job::failed_at(SpawnStage::Exec)(exec_command(job)),
        Err(failure) => failure,
    };
    job.progress.fail(failure);
    raw::exit(127)
}

fn prepare(job: &CommandJob) -> Result<(), StartFailure> {
    let to_failure = job::failed_at(SpawnStage::Setup);
    // The command dies with its supervisor.
    raw::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize).map_err(&to_failure)?;
    raw::setsid().map_err(&to_failure)?;
    let sandbox_setup = job.sandbox_setup();
    if let Some(parts) = &sandbox_setup {
        if parts.namespaces().is_some() {
            undo_init_changes(job).map_err(&to_failure)?;
        }
        set_no_new_privileges().map_err(job::setup_failure)?;
        // Before the ruleset's descriptor is closed. No path is opened between here and exec.
        if job.landlock >= 0 {
            restrict_by_landlock(job.landlock).map_err(job::setup_failure)?;
        }
    }
    let watch = place_descriptors(job).map_err(&to_failure)?;
    if job.terminal {
        raw::set_controlling_terminal(0).map_err(&to_failure)?;
    }
    raw::chdir(job.cwd).map_err(job::failed_at(SpawnStage::Chdir))?;
    for &(resource, value) in &job.limits[..job.limit_count] {
        raw::lower_limit(resource, value).map_err(job::failed_at(SpawnStage::Limit))?;
    }
    if job.limit_count > 0 {
        forbid_raising_limits().map_err(job::failed_at(SpawnStage::Limit))?;
    }
    raw::unblock_signals().map_err(&to_failure)?;
    match sandbox_setup {
        Some(parts) => drop_privileges(&parts, watch),
        None => Ok(()),
    }
}

/// Restores the umask and limits that init changed for itself, and reports the command's pid as
/// seen outside its namespace.
fn undo_init_changes(job: &CommandJob) -> Result<(), Errno> {
    let init_to_child = &job.progress.init_to_child;
    set_umask(init_to_child.umask.load(SeqCst));
    let [soft, hard] = &init_to_child.open_files;
    raw::set_open_file_limits([soft.load(SeqCst), hard.load(SeqCst)])?;
    let mut own = [0; 16];
    let outer_proc = init_to_child.outer_proc.load(SeqCst);
    let length = raw::read_link(outer_proc, c"self", &mut own)?;
    let number = raw::leading_number(&own[..length]).ok_or(libc::ESRCH)?;
    job.progress.set_command(number);
    Ok(())
}

/// Drops capabilities and installs the seccomp filter. The filter comes last because it applies to
/// this process, too.
fn drop_privileges(parts: &EncodedSetup<'_>, watch: Option<c_int>) -> Result<(), StartFailure> {
    drop_capabilities().map_err(job::setup_failure)?;
    let listener =
        restrict_by_filter(parts.filter(), watch.is_some()).map_err(job::setup_failure)?;
    if let (Some(listener), Some(watch)) = (listener, watch) {
        send_listener(listener, watch).map_err(job::setup_failure)?;
    }
    Ok(())
}

/// Moves every descriptor to its number and closes all others, except the socket that receives the
/// seccomp listener, which has close-on-exec set.
fn place_descriptors(job: &CommandJob) -> Result<Option<c_int>, Errno> {
    let mut standard = job.standard;
    let mut extra = job.extra;
    let targets = extra[..job.extra_count].iter().map(|(_, target)| *target);
    // Moved just above all targets, because the limit of open files may be low.
    let above_targets = targets.max().unwrap_or(2).max(2) + 1;
    // Only a descriptor with the number of a target can be overwritten.
    for fd in &mut standard {
        if *fd <= 2 {
            *fd = raw::dup_above(*fd, above_targets)?;
        }
    }
    for (fd, _) in &mut extra[..job.extra_count] {
        *fd = raw::dup_above(*fd, above_targets)?;
    }
    let mut keep = [-1; MAX_EXTRA + 1];
    for (keep, (_, target)) in keep.iter_mut().zip(&extra[..job.extra_count]) {
        *keep = *target;
    }
    let mut watch = job.progress.init_to_child.listener_to.load(SeqCst);
    while watch >= 0 && (watch <= 2 || keep[..job.extra_count].contains(&watch)) {
        watch = raw::dup_above(watch, watch + 1)?;
    }
    keep[MAX_EXTRA] = watch;
    for (target, fd) in (0..).zip(standard) {
        raw::dup2(fd, target)?;
    }
    for &(fd, target) in &extra[..job.extra_count] {
        raw::dup2(fd, target)?;
    }
    raw::close_from_except(3, keep.into_iter())?;
    Ok((watch >= 0).then_some(watch))
}

/// Tries every candidate, as `execvp` does. Returns only if all fail.
fn exec_command(job: &CommandJob) -> Errno {
    let mut refused = None;
    let mut candidate = job.candidates;
    loop {
        // SAFETY: the table ends with a null pointer, where the loop stops.
        let path = unsafe { *candidate };
        if path.is_null() {
            return refused.unwrap_or(libc::ENOENT);
        }
        match raw::execve(path, job.argv, job.env) {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => refused = Some(libc::EACCES),
            libc::ENOEXEC => return exec_with_shell(job, path),
            errno => return errno,
        }
        // SAFETY: an entry that is not null is followed by another one.
        candidate = unsafe { candidate.add(1) };
    }
}

/// Runs a text file without `#!` with the shell.
fn exec_with_shell(job: &CommandJob, script: *const c_char) -> Errno {
    // SAFETY: the table has a slot for the script after the shell's name.
    let slot = unsafe { job.shell_argv.add(1) };
    // SAFETY: the slot belongs to this job, and the script's name outlives it.
    unsafe { slot.write(script) };
    raw::execve(c"/bin/sh".as_ptr(), job.shell_argv, job.env)
}
