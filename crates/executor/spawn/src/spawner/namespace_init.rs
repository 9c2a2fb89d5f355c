//! The first process in an enclosed command's namespaces: makes them, starts the command, reaps,
//! and ends when nothing is left. Shares the spawner's memory; nothing here allocates, locks or returns.
//!
//! It keeps its permitted capabilities, so that the command, which has none, can neither trace it
//! nor look into it.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::Ordering::SeqCst,
};

use super::{
    Stage, child_setup,
    job::CommandJob,
    start_progress::{self, StartFailure},
    supervisor::{StartedCommand, close_all_except},
};
use crate::{
    enclosure::{
        EncodedSetup, GuardWatch, MountView, NamespaceFlags, SetupFailure, StepCode,
        keep_only_ptrace, make_mounts_private, map_account, open_outer_proc, set_umask,
        set_up_network,
    },
    raw::{self, Errno},
};

/// Starts an init and waits for it to start the command.
pub(super) fn start(
    job: &CommandJob,
    namespaces: NamespaceFlags,
) -> Result<StartedCommand, StartFailure> {
    let mut flags = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_CHILD_CLEARTID;
    for (wanted, flag) in [
        (namespaces.user, libc::CLONE_NEWUSER),
        (namespaces.processes, libc::CLONE_NEWPID),
        (namespaces.network, libc::CLONE_NEWNET),
    ] {
        if wanted {
            flags |= flag;
        }
    }
    let refused = |errno| start_progress::setup_failure(StepCode::Namespaces.failure()(errno));
    let own = raw::pidfd_open(raw::getpid()).map_err(refused)?;
    // Init looks at it once, to learn whether this process still lived when it began.
    job.progress.init_to_child.outer_proc.store(own, SeqCst);
    let [early_exit_rx, early_exit_tx] = raw::socket_pair().map_err(refused)?;
    job.progress.early_exit_tx.store(early_exit_tx, SeqCst);
    let argument = ptr::from_ref(job).cast_mut().cast();
    let word = ptr::from_ref(job.progress.init_futex());
    // SAFETY: the stack is init's own; the region is kept until this process was reaped, which does
    // not end before init has; the word is in the region.
    let init = unsafe { raw::clone_vm(enter, job.init_stack_top, flags, argument, word) };
    let init = init.map_err(refused)?;
    // Whoever lets go of the mounts last takes them down, which takes a while. With this it is not
    // init, for whose end somebody waits. If it fails, it is.
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
            // Without a failure of its own it was killed.
            Err(job.progress.failure().unwrap_or(refused(libc::ESRCH)))
        }
    }
}

extern "C" fn enter(argument: *mut c_void) -> c_int {
    // SAFETY: the supervisor passes its job, which outlives init. It is written to by atomics only.
    let job = unsafe { &*argument.cast::<CommandJob>() };
    match start_command(job) {
        Ok((command, watch)) => {
            job.progress.set_running();
            reap_until_done(job, command, watch)
        }
        Err(failure) => {
            job.progress.fail(failure);
            // The supervisor is woken by that.
            raw::exit(1)
        }
    }
}

/// Makes the namespaces what they are to be, and starts the command in them.
fn start_command(job: &CommandJob) -> Result<(i32, Option<GuardWatch>), StartFailure> {
    let Some(parts) = job.enclosure() else {
        return Err(start_progress::failed_at(Stage::Setup)(libc::EINVAL));
    };
    let watch = prepare(job, &parts).map_err(start_progress::setup_failure)?;
    if let Some(watch) = &watch {
        job.progress
            .init_to_child
            .listener_to
            .store(watch.command_socket(), SeqCst);
    }
    let stack = job.child_stack_top;
    let argument = ptr::from_ref(job).cast_mut().cast();
    // SAFETY: the child's stack is its own; this process is suspended until the child is done.
    let command = unsafe {
        raw::clone_vm(
            child_setup::enter,
            stack,
            libc::CLONE_VFORK,
            argument,
            ptr::null(),
        )
    };
    let command = command.map_err(start_progress::failed_at(Stage::Clone))?;
    match job.progress.failure() {
        Some(failure) => Err(failure),
        None => Ok((command, watch)),
    }
}

fn prepare(job: &CommandJob, parts: &EncodedSetup<'_>) -> Result<Option<GuardWatch>, SetupFailure> {
    let refused = StepCode::Namespaces.failure();
    let namespaces = parts.namespaces().ok_or_else(|| refused(libc::EINVAL))?;
    let init_to_child = &job.progress.init_to_child;
    // If the supervisor is killed, so is everything here.
    raw::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize).map_err(&refused)?;
    if raw::pidfd_has_exited(init_to_child.outer_proc.load(SeqCst)) {
        raw::exit(1);
    }
    init_to_child.umask.store(set_umask(0), SeqCst);
    // Every slot is a descriptor.
    let open_files = raw::raise_open_file_limit().map_err(&refused)?;
    for (place, limit) in init_to_child.open_files.iter().zip(open_files) {
        place.store(limit, SeqCst);
    }
    let outer_proc = open_outer_proc().map_err(&refused)?;
    init_to_child.outer_proc.store(outer_proc, SeqCst);
    if !namespaces.processes {
        // What the command leaves behind is reaped here all the same.
        raw::prctl(libc::PR_SET_CHILD_SUBREAPER, 1).map_err(&refused)?;
    }
    if namespaces.user {
        map_account(job.account.0, job.account.1).map_err(StepCode::Account.failure())?;
    }
    if namespaces.network {
        set_up_network(parts, job.listener_socket).map_err(StepCode::Network.failure())?;
    }
    make_mounts_private().map_err(&refused)?;
    MountView::new(namespaces.processes).build(parts)?;
    // The view outside knows the command by another number, if it has a namespace of processes.
    let processes = if namespaces.processes && parts.has_guards() {
        open_outer_proc().map_err(&refused)?
    } else {
        outer_proc
    };
    GuardWatch::open(parts, processes)
}

/// Reaps until nothing is left. What the command left behind may still have something to say: its end
/// is told at once, and the rest is the supervisor's to kill.
fn reap_until_done(job: &CommandJob, command: i32, watch: Option<GuardWatch>) -> ! {
    let mut watch = watch;
    let early_exit_tx = job.progress.early_exit_tx.load(SeqCst);
    let received = watch.as_mut().map_or(Ok(()), GuardWatch::receive_listener);
    // The ends of the command's pipes must not stay open here.
    match &watch {
        Some(watch) => watch.close_others([job.signals, early_exit_tx]),
        None => close_all_except([early_exit_tx]),
    }
    // Without a listener the command is lost, and without its capabilities in check so is this.
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

/// Reaps what has ended. Tells whether anything is left.
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

/// Reaps one child. `Ok(false)`: there is none to reap.
fn reap(job: &CommandJob, command: i32, wait: WaitFn) -> Result<bool, Errno> {
    let (mut status, mut usage) = (0, raw::zeroed_rusage());
    let pid = wait(&mut status, &mut usage)?;
    if pid == command {
        job.progress.set_command_exit(status, &usage);
    }
    Ok(pid > 0)
}
