//! The kernel's word on what changes in directories: one instance and one thread for everybody.
//!
//! A user may have no more than 128 instances by default, and every connection may watch, so all
//! watches share one. A [`Task`] holds the directories it wants to hear of; a directory that several
//! hold is watched once. The thread lives from the first task to the last; tasks live on it alone
//! and need no locks.
//!
//! Invariant: an event of a held directory reaches every holder, or all tasks are told of an
//! overflow. The queue is the kernel's and bounded, so nobody who is slow costs memory here.
//! Not here: what events mean (`watch`, `missing`).

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

/// Gives a task to the thread, which is started if there is none.
///
/// # Errors
/// Fails if this user may have no more instances, or no more threads.
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
        .map_err(|_| io::Error::other("the thread for watches has ended"))?;
    *handle = Some(opened);
    Ok(WatchSubscription(id))
}

/// A task on the thread. It is ended by dropping this.
#[derive(Debug)]
pub(crate) struct WatchSubscription(WatchTaskId);

impl Drop for WatchSubscription {
    fn drop(&mut self) {
        if let Some(open) = &*watch_thread() {
            // A thread that has ended has no task left.
            open.send(WatchCommand::Remove(self.0)).ok();
        }
    }
}

/// Closes the door, unless somebody has come to it: then there is a command to do.
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

/// The way to the thread. Not bounded, because nobody may wait in a `drop`; there are two commands
/// for each watch, and who limits watches limits these.
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
        // It fails if it has been rung so often that nobody can have missed it.
        rustix::io::write(&*self.wakeup, &1_u64.to_ne_bytes()).ok();
        Ok(())
    }
}

/// What the thread is asked for.
pub(super) enum WatchCommand {
    /// To begin with a task.
    Add(WatchTaskId, StartTask),
    /// To end one, if it has not ended.
    Remove(WatchTaskId),
}

static WATCH_THREAD: Mutex<Option<WatchThreadHandle>> = Mutex::new(None);
static NEXT_TASK: AtomicU64 = AtomicU64::new(0);

/// What the thread owns.
pub(super) struct WatchThread {
    instance: InotifyInstance,
    tasks: BTreeMap<WatchTaskId, Box<dyn WatchTask>>,
    commands: Receiver<WatchCommand>,
    wakeup: Arc<OwnedFd>,
    buffer: Vec<MaybeUninit<u8>>,
}

impl WatchThread {
    /// Starts the thread. It ends by itself when it has no task left and the door is closed.
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

    /// Waits until something can be done.
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
        // Interrupted or not: what there is to do is looked for.
        poll(&mut descriptors, timeout.as_ref()).ok();
        rustix::io::read(&*self.wakeup, &mut [0; 8]).ok();
    }

    fn handle(&mut self, command: WatchCommand) {
        match command {
            WatchCommand::Add(id, begin) => {
                // What has happened before is not for the newcomer, who may share directories.
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

    /// Hands out what the kernel has queued, or a good part of it.
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

/// Makes a task on the thread, and takes hold of its first directories; `None` if it cannot be.
pub(crate) type StartTask =
    Box<dyn FnOnce(&mut TaskWatches<'_>) -> Option<Box<dyn WatchTask>> + Send>;

/// A listener. It lives on the thread of the instance, so it must not wait for anybody.
pub(crate) trait WatchTask: Send {
    /// Handles an event of a directory that is held, or was until a moment ago.
    fn handle_event(&mut self, event: &InotifyEvent<'_>, watches: &mut TaskWatches<'_>);

    /// Handles the loss of events, nobody knows which.
    fn handle_overflow(&mut self);

    /// Handles that the time of `poll_timeout` may have come.
    fn handle_timeout(&mut self, watches: &mut TaskWatches<'_>, now: Instant);

    /// Does a small part of the work that is left. Events are read in between.
    fn work(&mut self, watches: &mut TaskWatches<'_>);

    /// Returns when the task wants to be called even if nothing happens.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Tells whether there is work left.
    fn has_work(&self) -> bool;

    /// Tells whether the task has ended by itself.
    fn is_over(&self) -> bool;
}
