//! The instance, and who holds which directory.

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

/// An instance of the kernel's.
#[derive(Debug)]
pub(crate) struct InotifyInstance {
    queue: Arc<OwnedFd>,
    holders: HashMap<WatchDescriptor, Vec<WatchTaskId>>,
    /// Directories that nobody holds any more, until the kernel is told.
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

    /// Returns the instance as one task sees it.
    pub(crate) fn of(&mut self, task: WatchTaskId) -> TaskWatches<'_> {
        TaskWatches {
            instance: self,
            task,
        }
    }

    /// Takes everything from a task that has ended.
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

    /// Forgets a directory that the kernel does not watch any more.
    pub(crate) fn forget(&mut self, directory: WatchDescriptor) {
        self.holders.remove(&directory);
    }

    /// Stops watching some of what nobody holds. The kernel confirms each with an event, so all at
    /// once would overflow its queue.
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

    /// Returns where events are read.
    pub(crate) fn queue(&self) -> &Arc<OwnedFd> {
        &self.queue
    }

    /// Tells whether there is something to reap.
    pub(crate) fn has_unwatched(&self) -> bool {
        !self.unwatched.is_empty()
    }

    /// Returns who is to hear of a directory.
    pub(crate) fn holders(&self, directory: WatchDescriptor) -> Vec<WatchTaskId> {
        self.holders.get(&directory).cloned().unwrap_or_default()
    }

    fn add(&self, path: &Path, what: WatchFlags) -> Result<WatchDescriptor, Errno> {
        let flags = what
            // Other holders keep what they asked for.
            | WatchFlags::MASK_ADD
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW
            // A file that is deleted and still written to has no path to tell.
            | WatchFlags::EXCL_UNLINK;
        inotify::add_watch(&*self.queue, path, flags).map(WatchDescriptor)
    }

    fn stop(&self, directory: WatchDescriptor) {
        // It fails for a directory that has been removed: the kernel stopped by itself.
        inotify::remove_watch(&*self.queue, directory.0).ok();
    }
}

/// A task's number, never given twice.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct WatchTaskId(pub(crate) u64);

/// The instance as one task sees it.
#[derive(Debug)]
pub(crate) struct TaskWatches<'a> {
    instance: &'a mut InotifyInstance,
    task: WatchTaskId,
}

impl TaskWatches<'_> {
    /// Watches the directory at `path` for `what`, and perhaps for more. Links are not followed at
    /// the end of the path. To hold a directory twice is to hold it once.
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

    /// Stops hearing of a directory.
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

    /// Returns which held directory is at `path` now. Events tell what was; this tells what is.
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

/// The kernel's number of a watched directory. It stays with the directory when that is renamed.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct WatchDescriptor(pub(crate) i32);

/// Ties the two ends of a rename together.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct RenameCookie(pub(crate) u32);

/// A change in a watched directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InotifyEvent<'a> {
    /// The directory.
    pub(crate) directory: WatchDescriptor,
    /// What has happened.
    pub(crate) what: ReadFlags,
    /// Both ends of a rename have the same.
    pub(crate) cookie: RenameCookie,
    /// The entry it has happened to; the directory itself if there is none.
    pub(crate) name: Option<&'a OsStr>,
}

/// Reads what the kernel has queued, or as much as its queue can hold. `None` stands for events that
/// were lost.
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
            // Nothing is left. Other errors it has none.
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

/// Makes a buffer to read into.
pub(crate) fn buffer() -> Vec<MaybeUninit<u8>> {
    vec![MaybeUninit::uninit(); BUFFER_BYTES]
}

/// A good thousand events.
const BUFFER_BYTES: usize = 64 << 10;
/// Reads until somebody else gets his turn.
const READ_BATCH: usize = 16;
