//! Directory change events from the kernel: one inotify instance and one thread, shared by all
//! watches.
//!
//! A user may have no more than 128 instances by default, and every connection may watch, so all
//! watches share one. A [`WatchTask`] watches the directories it needs; a directory of several
//! tasks is watched once. The thread runs from the first task to the last. Tasks run only on it and
//! need no locks.
//!
//! Invariant: an event of a watched directory reaches every task that watches it, or all tasks are
//! notified of an overflow. The kernel's queue is bounded, so a slow client costs no memory here.
//! Elsewhere: what events mean (`watch`, `ancestor_watch`).

mod instance;

use std::{
    collections::BTreeMap,
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Instant,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::inotify::ReadFlags,
};

pub(crate) use self::instance::{
    InotifyEvent, InotifyInstance, RenameCookie, TaskWatches, WatchDescriptor, WatchTaskId, buffer,
    read,
};

/// Adds a task to the watch thread, starting the thread if necessary.
///
/// # Errors
/// Fails if the user's limit of instances or threads is reached.
pub(crate) fn subscribe(begin: StartTask) -> io::Result<WatchSubscription> {
    let id = WatchTaskId(NEXT_TASK.fetch_add(1, Ordering::Relaxed));
    let mut handle = watch_thread();
    let mut command = WatchCommand::Add(id, begin);
    if let Some(open) = &*handle {
        match open.send(command) {
            Ok(()) => return Ok(WatchSubscription(id)),
            Err(refused) => command = refused,
        }
    }
    let opened = WatchThread::start()?;
    opened
        .send(command)
        .map_err(|_| io::Error::other("watch thread has exited"))?;
    *handle = Some(opened);
    Ok(WatchSubscription(id))
}

/// A task on the watch thread. Dropping this ends the task.
#[derive(Debug)]
pub(crate) struct WatchSubscription(WatchTaskId);

impl Drop for WatchSubscription {
    fn drop(&mut self) {
        if let Some(open) = &*watch_thread() {
            // A thread that has exited has no task left.
            open.send(WatchCommand::Remove(self.0)).ok();
        }
    }
}

/// Closes the handle of the thread, unless a command has arrived meanwhile; returns that command.
pub(super) fn close_if_idle(commands: &Receiver<WatchCommand>) -> Option<WatchCommand> {
    let mut handle = watch_thread();
    let command = commands.try_recv().ok();
    if command.is_none() {
        *handle = None;
    }
    command
}

fn watch_thread() -> MutexGuard<'static, Option<WatchThreadHandle>> {
    WATCH_THREAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handle of the watch thread. Its queue is unbounded because a `drop` must not block. There
/// are two commands for each watch, so the limit of watches bounds it.
pub(super) struct WatchThreadHandle {
    commands: Sender<WatchCommand>,
    wakeup: Arc<OwnedFd>,
}

impl WatchThreadHandle {
    pub(super) fn new(commands: Sender<WatchCommand>, wakeup: Arc<OwnedFd>) -> Self {
        Self { commands, wakeup }
    }

    fn send(&self, command: WatchCommand) -> Result<(), WatchCommand> {
        self.commands.send(command).map_err(|refused| refused.0)?;
        // Fails only if the counter is full, and then a wake-up is pending.
        rustix::io::write(&*self.wakeup, &1_u64.to_ne_bytes()).ok();
        Ok(())
    }
}

/// A command for the watch thread.
pub(super) enum WatchCommand {
    /// Start a task.
    Add(WatchTaskId, StartTask),
    /// End a task, if it is still running.
    Remove(WatchTaskId),
}

static WATCH_THREAD: Mutex<Option<WatchThreadHandle>> = Mutex::new(None);
static NEXT_TASK: AtomicU64 = AtomicU64::new(0);

/// The state of the watch thread.
pub(super) struct WatchThread {
    instance: InotifyInstance,
    tasks: BTreeMap<WatchTaskId, Box<dyn WatchTask>>,
    commands: Receiver<WatchCommand>,
    wakeup: Arc<OwnedFd>,
    buffer: Vec<MaybeUninit<u8>>,
}

impl WatchThread {
    /// Starts the thread. It exits when it has no task left and its handle is closed.
    pub(super) fn start() -> io::Result<WatchThreadHandle> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wakeup = Arc::new(wakeup);
        let (sender, commands) = mpsc::channel();
        let thread = Self {
            instance: InotifyInstance::new()?,
            tasks: BTreeMap::new(),
            commands,
            wakeup: Arc::clone(&wakeup),
            buffer: buffer(),
        };
        thread::Builder::new()
            .name("exec-watch".to_owned())
            .spawn(move || thread.run())?;
        Ok(WatchThreadHandle::new(sender, wakeup))
    }

    fn run(mut self) {
        loop {
            self.wait();
            while let Ok(command) = self.commands.try_recv() {
                self.handle(command);
            }
            self.read_events();
            let now = Instant::now();
            for (&id, task) in &mut self.tasks {
                let mut watches = self.instance.of(id);
                task.handle_timeout(&mut watches, now);
                if task.has_work() {
                    task.work(&mut watches);
                }
            }
            let over = self.tasks.extract_if(.., |_, task| task.is_over());
            for (id, _) in over {
                self.instance.release_all(id);
            }
            self.instance.reap();
            if self.tasks.is_empty() {
                match close_if_idle(&self.commands) {
                    Some(command) => self.handle(command),
                    None => return,
                }
            }
        }
    }

    /// Waits for events, commands or the next deadline.
    fn wait(&self) {
        let busy = self.instance.has_unwatched() || self.tasks.values().any(|task| task.has_work());
        let deadline = self.tasks.values().filter_map(|task| task.poll_timeout());
        let timeout = match (busy, deadline.min()) {
            (true, _) => Some(Timespec::default()),
            (false, Some(at)) => {
                Timespec::try_from(at.saturating_duration_since(Instant::now())).ok()
            }
            (false, None) => None,
        };
        let mut descriptors = [
            PollFd::new(&**self.instance.queue(), PollFlags::IN),
            PollFd::new(&*self.wakeup, PollFlags::IN),
        ];
        // After an interruption the loop checks everything as well.
        poll(&mut descriptors, timeout.as_ref()).ok();
        rustix::io::read(&*self.wakeup, &mut [0; 8]).ok();
    }

    fn handle(&mut self, command: WatchCommand) {
        match command {
            WatchCommand::Add(id, begin) => {
                // Earlier events are not for the new task, which may share directories with others.
                self.read_events();
                match begin(&mut self.instance.of(id)) {
                    Some(task) => {
                        self.tasks.insert(id, task);
                    }
                    None => self.instance.release_all(id),
                }
            }
            WatchCommand::Remove(id) => {
                if self.tasks.remove(&id).is_some() {
                    self.instance.release_all(id);
                }
            }
        }
    }

    /// Dispatches the events that the kernel has queued, up to a limit.
    fn read_events(&mut self) {
        let queue = Arc::clone(self.instance.queue());
        read(&queue, &mut self.buffer, |event| {
            let Some(event) = event else {
                for task in self.tasks.values_mut() {
                    task.handle_overflow();
                }
                return;
            };
            for id in self.instance.holders(event.directory) {
                if let Some(task) = self.tasks.get_mut(&id) {
                    task.handle_event(&event, &mut self.instance.of(id));
                }
            }
            if event.what.contains(ReadFlags::IGNORED) {
                self.instance.forget(event.directory);
            }
        });
    }
}

/// Creates a task on the watch thread and watches its first directories. `None`: it cannot start.
pub(crate) type StartTask =
    Box<dyn FnOnce(&mut TaskWatches<'_>) -> Option<Box<dyn WatchTask>> + Send>;

/// A consumer of events. It runs on the watch thread, so it must not block.
pub(crate) trait WatchTask: Send {
    /// Handles an event of a directory that the task watches, or watched until just now.
    fn handle_event(&mut self, event: &InotifyEvent<'_>, watches: &mut TaskWatches<'_>);

    /// Handles the loss of an unknown set of events.
    fn handle_overflow(&mut self);

    /// Called after the time of `poll_timeout` may have passed.
    fn handle_timeout(&mut self, watches: &mut TaskWatches<'_>, now: Instant);

    /// Does a small part of the remaining work. Events are read in between.
    fn work(&mut self, watches: &mut TaskWatches<'_>);

    /// Returns the task's next deadline.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Returns whether work is left.
    fn has_work(&self) -> bool;

    /// Returns whether the task has ended by itself.
    fn is_over(&self) -> bool;
}
