//! Between clone and exec: the child becomes the command. Nothing here allocates, locks or returns.

use std::ffi::{c_char, c_int, c_void};

use super::{
    handle::Stage,
    job::Job,
    raw::{self, Errno},
};

/// Descriptors that are in the way of their targets are moved above this.
const OUT_OF_THE_WAY: c_int = 64;

/// Entry of the child. Its parent is suspended until it has become the command, or has failed.
pub(super) extern "C" fn enter(argument: *mut c_void) -> c_int {
    let job = argument.cast::<Job>();
    // SAFETY: the supervisor passes its job, and is suspended while the child uses it.
    let job = unsafe { &mut *job };
    let (stage, errno) = match prepare(job) {
        Ok(()) => (Stage::Exec, become_command(job)),
        Err(failure) => failure,
    };
    job.failure = (stage as u32, errno);
    raw::exit(127)
}

fn prepare(job: &Job) -> Result<(), (Stage, Errno)> {
    let setup = |errno| (Stage::Setup, errno);
    // If the supervisor is killed, so is the command.
    raw::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize).map_err(setup)?;
    raw::setsid().map_err(setup)?;
    place_descriptors(job).map_err(setup)?;
    if job.terminal {
        raw::set_controlling_terminal(0).map_err(setup)?;
    }
    raw::chdir(job.cwd).map_err(|errno| (Stage::Chdir, errno))?;
    for &(resource, value) in &job.limits[..job.limit_count] {
        raw::set_limit(resource, value).map_err(|errno| (Stage::Limit, errno))?;
    }
    raw::unblock_signals().map_err(setup)?;
    Ok(())
}

/// Puts every descriptor on its number and closes all others.
fn place_descriptors(job: &Job) -> Result<(), Errno> {
    let mut standard = job.standard;
    let mut extra = job.extra;
    // Only numbers among the targets can be in the way of another; they are low or few.
    for fd in &mut standard {
        if *fd <= 2 {
            *fd = raw::dup_above(*fd, OUT_OF_THE_WAY)?;
        }
    }
    for (fd, _) in &mut extra[..job.extra_count] {
        *fd = raw::dup_above(*fd, OUT_OF_THE_WAY)?;
    }
    for (target, fd) in (0..).zip(standard) {
        raw::dup2(fd, target)?;
    }
    let mut first_free = 3;
    for &(fd, target) in &extra[..job.extra_count] {
        raw::dup2(fd, target)?;
    }
    // Close everything between and above the targets, lowest target first.
    loop {
        let next = extra[..job.extra_count].iter().map(|(_, target)| *target);
        match next.filter(|target| *target >= first_free).min() {
            Some(target) => {
                if target > first_free {
                    raw::close_range(first_free, target - 1)?;
                }
                first_free = target + 1;
            }
            None => return raw::close_range(first_free, c_int::MAX).map(|_| ()),
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
