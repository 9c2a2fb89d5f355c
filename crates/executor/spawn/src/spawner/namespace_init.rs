//! Init, the first process in the namespaces of a command: sets them up, starts the command, reaps
//! its descendants, and exits when none is left.
//!
//! Shares the spawner's memory; nothing here allocates, locks or returns. Init keeps its permitted
//! capabilities, so that the command, which has none, can neither trace nor inspect it.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::Ordering::SeqCst,
};

use super::{
    SpawnStage, child_setup,
    job::{self, CommandJob, StartFailure},
    report::ExitReport,
    supervisor::StartedCommand,
};
use crate::{
    raw::{self, Errno},
    sandbox_setup::{
        EncodedSetup, GuardWatch, MountView, NamespaceFlags, SetupFailure, StepCode,
        keep_only_ptrace, make_mounts_private, map_account, open_outer_proc, set_umask,
        set_up_network,
    },
};

/// Starts an init and waits until it has started the command.
pub(super) fn start(
    job: &CommandJob,
    namespaces: NamespaceFlags,
) -> Result<StartedCommand, StartFailure> {
    let mut flags = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_CHILD_CLEARTID;
    for (requested, flag) in [
        (namespaces.user, libc::CLONE_NEWUSER),
        (namespaces.processes, libc::CLONE_NEWPID),
        (namespaces.network, libc::CLONE_NEWNET),
    ] {
        if requested {
            flags |= flag;
        }
    }
    let to_failure = |errno| job::setup_failure(StepCode::Namespaces.failure()(errno));
    let own = raw::pidfd_open(raw::getpid()).map_err(to_failure)?;
    // Init checks it once, to learn whether this process was still alive when init started.
    job.progress.init_to_child.outer_proc.store(own, SeqCst);
    let [early_exit_rx, early_exit_tx] = raw::socket_pair().map_err(to_failure)?;
    job.progress.early_exit_tx.store(early_exit_tx, SeqCst);
    let argument = ptr::from_ref(job).cast_mut().cast();
    let word = ptr::from_ref(job.progress.init_futex());
    // SAFETY: the stack is used by init only. The region is kept until this process was reaped, and
    // this process outlives init. The futex lies in the region.
    let init = unsafe { raw::clone_vm(enter, job.init_stack_top, flags, argument, word) };
    let init = init.map_err(to_failure)?;
    // The process that drops the last reference to the mounts tears them down, which is slow. This
    // descriptor makes it the supervisor instead of init, because the server waits for init.
    // Failing to open it is harmless.
    let mount_namespace = raw::open_proc_file(init, c"ns/mnt").unwrap_or(-1);
    match job.progress.wait() {
        Some(command) => Ok(StartedCommand {
            child: init,
            command,
            mount_namespace,
            early_exit_rx,
        }),
        None => {
            raw::wait_for(init);
            // Init reported no failure, so it was killed.
            Err(job.progress.failure().unwrap_or(to_failure(libc::ESRCH)))
        }
    }
}

extern "C" fn enter(argument: *mut c_void) -> c_int {
    // SAFETY: the supervisor passes its job, which outlives init and is written through atomics
    // only.
    let job = unsafe { &*argument.cast::<CommandJob>() };
    match start_command(job) {
        Ok((command, watch)) => {
            job.progress.set_running();
            reap_until_done(job, command, watch)
        }
        Err(failure) => {
            job.progress.fail(failure);
            // The exit wakes the supervisor.
            raw::exit(1)
        }
    }
}

/// Sets up the namespaces and starts the command in them.
fn start_command(job: &CommandJob) -> Result<(i32, Option<GuardWatch>), StartFailure> {
    let Some(parts) = job.sandbox_setup() else {
        return Err(job::failed_at(SpawnStage::Setup)(libc::EINVAL));
    };
    let watch = prepare(job, &parts).map_err(job::setup_failure)?;
    if let Some(watch) = &watch {
        job.progress
            .init_to_child
            .listener_to
            .store(watch.command_socket(), SeqCst);
    }
    let stack = job.child_stack_top;
    let argument = ptr::from_ref(job).cast_mut().cast();
    // SAFETY: the child's stack is used by the child only; this process is suspended until the
    // child has executed or exited.
    let command = unsafe {
        raw::clone_vm(
            child_setup::enter,
            stack,
            libc::CLONE_VFORK,
            argument,
            ptr::null(),
        )
    };
    let command = command.map_err(job::failed_at(SpawnStage::Clone))?;
    match job.progress.failure() {
        Some(failure) => Err(failure),
        None => Ok((command, watch)),
    }
}

fn prepare(job: &CommandJob, parts: &EncodedSetup<'_>) -> Result<Option<GuardWatch>, SetupFailure> {
    let to_failure = StepCode::Namespaces.failure();
    let namespaces = parts.namespaces().ok_or_else(|| to_failure(libc::EINVAL))?;
    let init_to_child = &job.progress.init_to_child;
    // Everything in here dies with the supervisor.
    raw::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize).map_err(&to_failure)?;
    if raw::pidfd_has_exited(init_to_child.outer_proc.load(SeqCst)) {
        raw::exit(1);
    }
    init_to_child.umask.store(set_umask(0), SeqCst);
    // Every mount slot is a descriptor.
    let open_files = raw::raise_open_file_limit().map_err(&to_failure)?;
    for (slot, limit) in init_to_child.open_files.iter().zip(open_files) {
        slot.store(limit, SeqCst);
    }
    let outer_proc = open_outer_proc().map_err(&to_failure)?;
    init_to_child.outer_proc.store(outer_proc, SeqCst);
    if !namespaces.processes {
        // Descendants of the command are reaped here even without a pid namespace.
        raw::prctl(libc::PR_SET_CHILD_SUBREAPER, 1).map_err(&to_failure)?;
    }
    if namespaces.user {
        map_account(job.account.0, job.account.1).map_err(StepCode::Account.failure())?;
    }
    if namespaces.network {
        set_up_network(parts, job.listener_socket).map_err(StepCode::Network.failure())?;
    }
    make_mounts_private().map_err(&to_failure)?;
    MountView::new(namespaces.processes).build(parts)?;
    // With a pid namespace, the outer procfs knows the command by another pid.
    let processes = if namespaces.processes && parts.has_guards() {
        open_outer_proc().map_err(&to_failure)?
    } else {
        outer_proc
    };
    GuardWatch::open(parts, processes)
}

/// Reaps until no process is left. If descendants outlive the command, reports its exit at once;
/// killing them is up to the supervisor.
fn reap_until_done(job: &CommandJob, command: i32, watch: Option<GuardWatch>) -> ! {
    let mut watch = watch;
    let early_exit_tx = job.progress.early_exit_tx.load(SeqCst);
    let received = watch.as_mut().map_or(Ok(()), GuardWatch::receive_listener);
    // The command's pipe ends must not stay open here.
    match &watch {
        Some(watch) => watch.close_others([job.signals, early_exit_tx]),
        None => drop(raw::close_from_except(0, [early_exit_tx].into_iter())),
    }
    // Without the listener the command cannot work, and with extra capabilities init must not run
    // on.
    if received.is_err() || keep_only_ptrace().is_err() {
        raw::exit(1);
    }
    let mut exit_reported = false;
    let mut is_over = || {
        let is_over = !reap_ended(job, command);
        if !is_over && !exit_reported && job.progress.command_has_exited() {
            exit_reported = true;
            let _ = raw::send(early_exit_tx, &[0]);
        }
        is_over
    };
    if let Some(watch) = &mut watch {
        watch.serve(job.signals, || {
            let mut record = [0; size_of::<libc::signalfd_siginfo>()];
            while raw::read(job.signals, &mut record).is_ok() {}
            is_over()
        });
    } else {
        while !is_over() {
            let _ = reap(job, command, raw::wait_next);
        }
    }
    raw::exit(0)
}

/// Reaps all children that have exited. Returns whether any child is left.
fn reap_ended(job: &CommandJob, command: i32) -> bool {
    loop {
        match reap(job, command, raw::wait_any) {
            Ok(true) | Err(libc::EINTR) => {}
            Ok(false) => return true,
            Err(_) => return false,
        }
    }
}

type WaitFn = fn(&mut c_int, &mut libc::rusage) -> Result<i32, Errno>;

/// Reaps one child. `Ok(false)`: none has exited.
fn reap(job: &CommandJob, command: i32, wait: WaitFn) -> Result<bool, Errno> {
    let (mut status, mut usage) = (0, raw::zeroed_rusage());
    let pid = wait(&mut status, &mut usage)?;
    if pid == command {
        job.progress
            .set_command_exit(ExitReport::new(status, &usage));
    }
    Ok(pid > 0)
}
