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
    job::Job,
    start_progress::{self, Failure},
    supervisor::{Started, close_all_but},
};
use crate::{
    enclosure::{
        At, NamespaceParts, Parts, Refusal, View, Watch, keep_only_tracing, make_private,
        map_account, open_network, open_outside_processes, set_umask,
    },
    raw::{self, Errno},
};

/// Starts an init and waits for it to start the command.
pub(super) fn start(job: &Job, namespaces: NamespaceParts) -> Result<Started, Failure> {
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
    let refused = |errno| start_progress::refused(At::Namespaces.refused()(errno));
    let own = raw::pidfd_open(raw::getpid()).map_err(refused)?;
    // Init looks at it once, to learn whether this process still lived when it began.
    job.progress.for_child.outside.store(own, SeqCst);
    let [bell, rope] = raw::socket_pair().map_err(refused)?;
    job.progress.rope.store(rope, SeqCst);
    let argument = ptr::from_ref(job).cast_mut().cast();
    let word = ptr::from_ref(job.progress.word());
    // SAFETY: the stack is init's own; the region is kept until this process was reaped, which does
    // not end before init has; the word is in the region.
    let init = unsafe { raw::clone_vm(enter, job.init_stack_top, flags, argument, word) };
    let init = init.map_err(refused)?;
    // Whoever lets go of the mounts last takes them down, which takes a while. With this it is not
    // init, for whose end somebody waits. If it fails, it is.
    let held = raw::open_of_process(init, c"ns/mnt").unwrap_or(-1);
    match job.progress.wait() {
        Some(command) => Ok(Started {
            child: init,
            command,
            held,
            bell,
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
    let job = unsafe { &*argument.cast::<Job>() };
    match begin(job) {
        Ok((command, watch)) => {
            job.progress.set_running();
            attend(job, command, watch)
        }
        Err(failure) => {
            job.progress.fail(failure);
            // The supervisor is woken by that.
            raw::exit(1)
        }
    }
}

/// Makes the namespaces what they are to be, and starts the command in them.
fn begin(job: &Job) -> Result<(i32, Option<Watch>), Failure> {
    let Some(parts) = job.enclosure() else {
        return Err(start_progress::at(Stage::Setup)(libc::EINVAL));
    };
    let watch = prepare(job, &parts).map_err(start_progress::refused)?;
    if let Some(watch) = &watch {
        job.progress.for_child.watch.store(watch.theirs(), SeqCst);
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
    let command = command.map_err(start_progress::at(Stage::Clone))?;
    match job.progress.failure() {
        Some(failure) => Err(failure),
        None => Ok((command, watch)),
    }
}

fn prepare(job: &Job, parts: &Parts<'_>) -> Result<Option<Watch>, Refusal> {
    let refused = At::Namespaces.refused();
    let namespaces = parts.namespaces().ok_or_else(|| refused(libc::EINVAL))?;
    let for_child = &job.progress.for_child;
    // If the supervisor is killed, so is everything here.
    raw::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize).map_err(&refused)?;
    if raw::has_ended(for_child.outside.load(SeqCst)) {
        raw::exit(1);
    }
    for_child.umask.store(set_umask(0), SeqCst);
    // Every slot is a descriptor.
    let open_files = raw::raise_open_files().map_err(&refused)?;
    for (place, limit) in for_child.open_files.iter().zip(open_files) {
        place.store(limit, SeqCst);
    }
    let outside = open_outside_processes().map_err(&refused)?;
    for_child.outside.store(outside, SeqCst);
    if !namespaces.processes {
        // What the command leaves behind is reaped here all the same.
        raw::prctl(libc::PR_SET_CHILD_SUBREAPER, 1).map_err(&refused)?;
    }
    if namespaces.user {
        map_account(job.account.0, job.account.1).map_err(At::Account.refused())?;
    }
    if namespaces.network {
        open_network(parts, job.door).map_err(At::Network.refused())?;
    }
    make_private().map_err(&refused)?;
    View::new(namespaces.processes).make(parts)?;
    // The view outside knows the command by another number, if it has a namespace of processes.
    let processes = if namespaces.processes && parts.has_guards() {
        open_outside_processes().map_err(&refused)?
    } else {
        outside
    };
    Watch::open(parts, processes)
}

/// Reaps until nothing is left. What the command left behind may still have something to say: its end
/// is told at once, and the rest is the supervisor's to kill.
fn attend(job: &Job, command: i32, watch: Option<Watch>) -> ! {
    let mut watch = watch;
    let rope = job.progress.rope.load(SeqCst);
    let received = watch.as_mut().map_or(Ok(()), Watch::receive);
    // The ends of the command's pipes must not stay open here.
    match &watch {
        Some(watch) => watch.close_others([job.signals, rope]),
        None => close_all_but([rope]),
    }
    // Without a listener the command is lost, and without its capabilities in check so is this.
    if received.is_err() || keep_only_tracing().is_err() {
        raw::exit(1);
    }
    let mut told = false;
    let mut is_over = || {
        let is_over = !reap_ended(job, command);
        if !is_over && !told && job.progress.has_ended() {
            told = true;
            let _ = raw::send(rope, &[0]);
        }
        is_over
    };
    if let Some(watch) = &mut watch {
        watch.attend(job.signals, || {
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
fn reap_ended(job: &Job, command: i32) -> bool {
    loop {
        match reap(job, command, raw::wait_any) {
            Ok(true) | Err(libc::EINTR) => {}
            Ok(false) => return true,
            Err(_) => return false,
        }
    }
}

type Wait = fn(&mut c_int, &mut libc::rusage) -> Result<i32, Errno>;

/// Reaps one child. `Ok(false)`: there is none to reap.
fn reap(job: &Job, command: i32, wait: Wait) -> Result<bool, Errno> {
    let (mut status, mut usage) = (0, raw::empty_usage());
    let pid = wait(&mut status, &mut usage)?;
    if pid == command {
        job.progress.set_end(status, &usage);
    }
    Ok(pid > 0)
}
