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

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ffi::OsStr,
    io,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
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
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    io::Errno,
};

/// Adds a task to the watch thread, starting the thread if necessary.
///
/// # Errors
/// Fails if the user's limit of instances or threads is reached.
pub(crate) fn subscribe(start: StartTask) -> io::Result<WatchSubscription> {
    let id = WatchTaskId(NEXT_TASK.fetch_add(1, Ordering::Relaxed));
    let mut handle = watch_thread();
    let mut command = WatchCommand::Add(id, start);
    if let Some(handle) = &*handle {
        match handle.send(command) {
            Ok(()) => return Ok(WatchSubscription(id)),
            Err(refused) => command = refused,
        }
    }
    let started = WatchThread::start()?;
    started
        .send(command)
        .map_err(|_| io::Error::other("watch thread has exited"))?;
    *handle = Some(started);
    Ok(WatchSubscription(id))
}

/// A task on the watch thread. Dropping this ends the task.
#[derive(Debug)]
pub(crate) struct WatchSubscription(WatchTaskId);

impl Drop for WatchSubscription {
    fn drop(&mut self) {
        if let Some(handle) = &*watch_thread() {
            // A thread that has exited has no task left.
            handle.send(WatchCommand::Remove(self.0)).ok();
        }
    }
}

/// Closes the handle of the thread, unless a command has arrived meanwhile; returns that command.
fn close_if_idle(commands: &Receiver<WatchCommand>) -> Option<WatchCommand> {
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
struct WatchThreadHandle {
    commands: Sender<WatchCommand>,
    wakeup: Arc<OwnedFd>,
}

impl WatchThreadHandle {
    fn send(&self, command: WatchCommand) -> Result<(), WatchCommand> {
        self.commands.send(command).map_err(|refused| refused.0)?;
        // Fails only if the counter is full, and then a wake-up is pending.
        rustix::io::write(&*self.wakeup, &1_u64.to_ne_bytes()).ok();
        Ok(())
    }
}

/// A command for the watch thread.
enum WatchCommand {
    /// Start a task.
    Add(WatchTaskId, StartTask),
    /// End a task, if it is still running.
    Remove(WatchTaskId),
}

static WATCH_THREAD: Mutex<Option<WatchThreadHandle>> = Mutex::new(None);
static NEXT_TASK: AtomicU64 = AtomicU64::new(0);

/// The state of the watch thread.
struct WatchThread {
    instance: InotifyInstance,
    tasks: BTreeMap<WatchTaskId, Box<dyn WatchTask>>,
    commands: Receiver<WatchCommand>,
    wakeup: Arc<OwnedFd>,
    buffer: Vec<MaybeUninit<u8>>,
}

impl WatchThread {
    /// Starts the thread. It exits when it has no task left and its handle is closed.
    fn start() -> io::Result<WatchThreadHandle> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wakeup = Arc::new(wakeup);
        let (sender, commands) = mpsc::channel();
        let handle = WatchThreadHandle {
            commands: sender,
            wakeup: Arc::clone(&wakeup),
        };
        let thread = Self {
            instance: InotifyInstance::new()?,
            tasks: BTreeMap::new(),
            commands,
            wakeup,
            buffer: buffer(),
        };
        thread::Builder::new()
            .name("exec-watch".to_owned())
            .spawn(move || thread.run())?;
        Ok(handle)
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
                let mut watches = self.instance.task_watches(id);
                task.handle_timeout(&mut watches, now);
                if task.has_work() {
                    task.work(&mut watches);
                }
            }
            let ended = self.tasks.extract_if(.., |_, task| task.has_ended());
            for (id, _) in ended {
                self.instance.release_all(id);
            }
            self.instance.remove_unwatched();
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
        let has_unwatched = !self.instance.unwatched.is_empty();
        let busy = has_unwatched || self.tasks.values().any(|task| task.has_work());
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
            WatchCommand::Add(id, start) => {
                // Earlier events are not for the new task, which may share directories with others.
                self.read_events();
                match start(&mut self.instance.task_watches(id)) {
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
            for id in self.instance.watchers(event.directory) {
                if let Some(task) = self.tasks.get_mut(&id) {
                    task.handle_event(&event, &mut self.instance.task_watches(id));
                }
            }
            if event.mask.contains(ReadFlags::IGNORED) {
                // The kernel has stopped watching it.
                self.instance.watchers.remove(&event.directory);
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
    fn handle_timeout(&mut self, _watches: &mut TaskWatches<'_>, _now: Instant) {}

    /// Does a small part of the remaining work. Events are read in between.
    fn work(&mut self, _watches: &mut TaskWatches<'_>) {}

    /// Returns the task's next deadline.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Returns whether work is left.
    fn has_work(&self) -> bool {
        false
    }

    /// Returns whether the task has ended by itself.
    fn has_ended(&self) -> bool;
}

/// An inotify instance of the kernel.
#[derive(Debug)]
pub(crate) struct InotifyInstance {
    queue: Arc<OwnedFd>,
    watchers: HashMap<WatchDescriptor, Vec<WatchTaskId>>,
    /// Directories that no task watches any more, until the kernel's watch is removed.
    unwatched: VecDeque<WatchDescriptor>,
}

impl InotifyInstance {
    pub(crate) fn new() -> Result<Self, Errno> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self {
            queue: Arc::new(queue),
            watchers: HashMap::new(),
            unwatched: VecDeque::new(),
        })
    }

    /// Returns the view of one task.
    pub(crate) fn task_watches(&mut self, task: WatchTaskId) -> TaskWatches<'_> {
        TaskWatches {
            instance: self,
            task,
        }
    }

    /// Releases all directories of a task that has ended.
    pub(crate) fn release_all(&mut self, task: WatchTaskId) {
        let unwatched = &mut self.unwatched;
        self.watchers.retain(|&directory, watchers| {
            watchers.retain(|&watcher| watcher != task);
            if watchers.is_empty() {
                unwatched.push_back(directory);
            }
            !watchers.is_empty()
        });
    }

    /// Removes some of the watches that no task needs. The kernel confirms each with an event, so
    /// removing all at once would overflow its queue.
    pub(crate) fn remove_unwatched(&mut self) {
        for _ in 0..REMOVE_BATCH {
            let Some(directory) = self.unwatched.pop_front() else {
                return;
            };
            if !self.watchers.contains_key(&directory) {
                self.remove_watch(directory);
            }
        }
    }

    /// Returns the descriptor to read events from.
    pub(crate) fn queue(&self) -> &Arc<OwnedFd> {
        &self.queue
    }

    /// Returns the tasks that watch a directory.
    pub(crate) fn watchers(&self, directory: WatchDescriptor) -> Vec<WatchTaskId> {
        self.watchers.get(&directory).cloned().unwrap_or_default()
    }

    fn add(&self, path: &Path, mask: WatchFlags) -> Result<WatchDescriptor, Errno> {
        let flags = mask
            // Keeps the event mask of other tasks.
            | WatchFlags::MASK_ADD
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW
            // A deleted file that is still written has no path to report.
            | WatchFlags::EXCL_UNLINK;
        inotify::add_watch(&*self.queue, path, flags).map(WatchDescriptor)
    }

    fn remove_watch(&self, directory: WatchDescriptor) {
        // Fails for a removed directory, because the kernel has removed its watch.
        inotify::remove_watch(&*self.queue, directory.0).ok();
    }
}

/// A task's id, never reused.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct WatchTaskId(pub(crate) u64);

/// The instance as one task sees it.
#[derive(Debug)]
pub(crate) struct TaskWatches<'a> {
    instance: &'a mut InotifyInstance,
    task: WatchTaskId,
}

impl TaskWatches<'_> {
    /// Watches the directory at `path` for at least `mask`. Does not follow a link as last
    /// component. Watching a directory twice has no further effect.
    pub(crate) fn watch(
        &mut self,
        path: &Path,
        mask: WatchFlags,
    ) -> Result<WatchDescriptor, Errno> {
        let directory = self.instance.add(path, mask)?;
        let watchers = self.instance.watchers.entry(directory).or_default();
        if !watchers.contains(&self.task) {
            watchers.push(self.task);
        }
        Ok(directory)
    }

    /// Stops watching a directory.
    pub(crate) fn unwatch(&mut self, directory: WatchDescriptor) {
        let Some(watchers) = self.instance.watchers.get_mut(&directory) else {
            return;
        };
        watchers.retain(|&watcher| watcher != self.task);
        if watchers.is_empty() {
            self.instance.watchers.remove(&directory);
            self.instance.unwatched.push_back(directory);
        }
    }

    /// Returns the watched directory that is at `path` now. Events describe the past; this
    /// describes the present.
    pub(crate) fn descriptor_at(&mut self, path: &Path) -> Option<WatchDescriptor> {
        let directory = self.instance.add(path, WatchFlags::MOVED_FROM).ok()?;
        if !self.instance.watchers.contains_key(&directory) {
            self.instance.remove_watch(directory);
            return None;
        }
        Some(directory)
    }
}

/// A sixteenth of the kernel's queue.
const REMOVE_BATCH: usize = 1024;

/// The kernel's id of a watched directory. It does not change when the directory is renamed.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct WatchDescriptor(pub(crate) i32);

/// Connects the two events of a rename.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct RenameCookie(pub(crate) u32);

/// A change in a watched directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InotifyEvent<'a> {
    /// The directory.
    pub(crate) directory: WatchDescriptor,
    /// The kind of change.
    pub(crate) mask: ReadFlags,
    /// Equal for both events of a rename.
    pub(crate) cookie: RenameCookie,
    /// The changed entry. `None`: the directory itself.
    pub(crate) name: Option<&'a OsStr>,
}

/// Reads the queued events, at most as many as the kernel's queue holds. `None` stands for lost
/// events.
pub(crate) fn read(
    queue: &OwnedFd,
    buffer: &mut [MaybeUninit<u8>],
    mut handle: impl FnMut(Option<InotifyEvent<'_>>),
) {
    let mut reader = Reader::new(queue, buffer);
    let mut reads = 0;
    loop {
        if reader.is_buffer_empty() {
            reads += 1;
            if reads > READ_BATCH {
                return;
            }
        }
        let raw = match reader.next() {
            Ok(raw) => raw,
            Err(Errno::INTR) => continue,
            // The queue is empty; no other error is possible.
            Err(_) => return,
        };
        if raw.events().contains(ReadFlags::QUEUE_OVERFLOW) {
            handle(None);
            continue;
        }
        handle(Some(InotifyEvent {
            directory: WatchDescriptor(raw.wd()),
            mask: raw.events(),
            cookie: RenameCookie(raw.cookie()),
            name: raw
                .file_name()
                .map(|name| OsStr::from_bytes(name.to_bytes())),
        }));
    }
}

/// Creates a read buffer.
pub(crate) fn buffer() -> Vec<MaybeUninit<u8>> {
    vec![MaybeUninit::uninit(); BUFFER_BYTES]
}

/// Holds over a thousand events.
const BUFFER_BYTES: usize = 64 << 10;
/// Most reads before other work is done.
const READ_BATCH: usize = 16;
