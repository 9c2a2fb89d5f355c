//! The inotify instance, its events, and which task watches which directory.

use std::{
    collections::{HashMap, VecDeque},
    ffi::OsStr,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
    sync::Arc,
};

use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    io::Errno,
};

/// An inotify instance of the kernel.
#[derive(Debug)]
pub(crate) struct InotifyInstance {
    queue: Arc<OwnedFd>,
    holders: HashMap<WatchDescriptor, Vec<WatchTaskId>>,
    /// Directories that no task watches any more, until the kernel's watch is removed.
    unwatched: VecDeque<WatchDescriptor>,
}

impl InotifyInstance {
    pub(crate) fn new() -> Result<Self, Errno> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self {
            queue: Arc::new(queue),
            holders: HashMap::new(),
            unwatched: VecDeque::new(),
        })
    }

    /// Returns the view of one task.
    pub(crate) fn of(&mut self, task: WatchTaskId) -> TaskWatches<'_> {
        TaskWatches {
            instance: self,
            task,
        }
    }

    /// Releases all directories of a task that has ended.
    pub(crate) fn release_all(&mut self, task: WatchTaskId) {
        let unwatched = &mut self.unwatched;
        self.holders.retain(|&directory, holders| {
            holders.retain(|&holder| holder != task);
            if holders.is_empty() {
                unwatched.push_back(directory);
            }
            !holders.is_empty()
        });
    }

    /// Drops a directory that the kernel has stopped watching.
    pub(crate) fn forget(&mut self, directory: WatchDescriptor) {
        self.holders.remove(&directory);
    }

    /// Removes some of the watches that no task needs. The kernel confirms each with an event, so
    /// removing all at once would overflow its queue.
    pub(crate) fn reap(&mut self) {
        for _ in 0..REAP_BATCH {
            let Some(directory) = self.unwatched.pop_front() else {
                return;
            };
            if !self.holders.contains_key(&directory) {
                self.stop(directory);
            }
        }
    }

    /// Returns the descriptor to read events from.
    pub(crate) fn queue(&self) -> &Arc<OwnedFd> {
        &self.queue
    }

    /// Returns whether there are watches to remove.
    pub(crate) fn has_unwatched(&self) -> bool {
        !self.unwatched.is_empty()
    }

    /// Returns the tasks that watch a directory.
    pub(crate) fn holders(&self, directory: WatchDescriptor) -> Vec<WatchTaskId> {
        self.holders.get(&directory).cloned().unwrap_or_default()
    }

    fn add(&self, path: &Path, what: WatchFlags) -> Result<WatchDescriptor, Errno> {
        let flags = what
            // Keeps the event mask of other tasks.
            | WatchFlags::MASK_ADD
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW
            // A deleted file that is still written has no path to report.
            | WatchFlags::EXCL_UNLINK;
        inotify::add_watch(&*self.queue, path, flags).map(WatchDescriptor)
    }

    fn stop(&self, directory: WatchDescriptor) {
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
    /// Watches the directory at `path` for at least `what`. Does not follow a link as last
    /// component. Watching a directory twice has no further effect.
    pub(crate) fn watch(
        &mut self,
        path: &Path,
        what: WatchFlags,
    ) -> Result<WatchDescriptor, Errno> {
        let directory = self.instance.add(path, what)?;
        let holders = self.instance.holders.entry(directory).or_default();
        if !holders.contains(&self.task) {
            holders.push(self.task);
        }
        Ok(directory)
    }

    /// Stops watching a directory.
    pub(crate) fn unwatch(&mut self, directory: WatchDescriptor) {
        let Some(holders) = self.instance.holders.get_mut(&directory) else {
            return;
        };
        holders.retain(|&holder| holder != self.task);
        if holders.is_empty() {
            self.instance.holders.remove(&directory);
            self.instance.unwatched.push_back(directory);
        }
    }

    /// Returns the watched directory that is at `path` now. Events describe the past; this
    /// describes the present.
    pub(crate) fn descriptor_at(&mut self, path: &Path) -> Option<WatchDescriptor> {
        let directory = self.instance.add(path, WatchFlags::MOVED_FROM).ok()?;
        if !self.instance.holders.contains_key(&directory) {
            self.instance.stop(directory);
            return None;
        }
        Some(directory)
    }
}

/// A sixteenth of the kernel's queue.
const REAP_BATCH: usize = 1024;

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
    pub(crate) what: ReadFlags,
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
            what: raw.events(),
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
