//! The thread of the instance.

use std::{
    collections::BTreeMap,
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    thread,
    time::Instant,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::inotify::ReadFlags,
};

use super::{
    event::{buffer, read},
    instance::{Instance, TaskId},
    task::{Begin, Task},
};

/// Gives a task to the thread, which is started if there is none.
///
/// # Errors
/// Fails if this user may have no more instances, or no more threads.
pub(crate) fn subscribe(begin: Begin) -> io::Result<Subscription> {
    let id = TaskId(NEXT_TASK.fetch_add(1, Ordering::Relaxed));
    let mut door = door();
    let mut command = Command::Add(id, begin);
    if let Some(open) = &*door {
        match open.send(command) {
            Ok(()) => return Ok(Subscription(id)),
            Err(refused) => command = refused,
        }
    }
    let opened = Hub::start()?;
    opened
        .send(command)
        .map_err(|_| io::Error::other("the thread for watches has ended"))?;
    *door = Some(opened);
    Ok(Subscription(id))
}

/// A task on the thread. It is ended by dropping this.
#[derive(Debug)]
pub(crate) struct Subscription(TaskId);

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(open) = &*door() {
            // A thread that has ended has no task left.
            open.send(Command::Remove(self.0)).ok();
        }
    }
}

static DOOR: Mutex<Option<Door>> = Mutex::new(None);
static NEXT_TASK: AtomicU64 = AtomicU64::new(0);

fn door() -> MutexGuard<'static, Option<Door>> {
    DOOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way to the thread. Not bounded, because nobody may wait in a `drop`; there are two commands
/// for each watch, and who limits watches limits these.
struct Door {
    commands: Sender<Command>,
    bell: Arc<OwnedFd>,
}

impl Door {
    fn send(&self, command: Command) -> Result<(), Command> {
        self.commands.send(command).map_err(|refused| refused.0)?;
        // It fails if it has been rung so often that nobody can have missed it.
        rustix::io::write(&*self.bell, &1_u64.to_ne_bytes()).ok();
        Ok(())
    }
}

enum Command {
    Add(TaskId, Begin),
    Remove(TaskId),
}

struct Hub {
    instance: Instance,
    tasks: BTreeMap<TaskId, Box<dyn Task>>,
    commands: Receiver<Command>,
    bell: Arc<OwnedFd>,
    buffer: Vec<MaybeUninit<u8>>,
}

impl Hub {
    fn start() -> io::Result<Door> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let bell = Arc::new(bell);
        let (sender, commands) = mpsc::channel();
        let hub = Self {
            instance: Instance::new()?,
            tasks: BTreeMap::new(),
            commands,
            bell: Arc::clone(&bell),
            buffer: buffer(),
        };
        thread::Builder::new()
            .name("exec-watch".to_owned())
            .spawn(move || hub.run())?;
        Ok(Door {
            commands: sender,
            bell,
        })
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
            if self.tasks.is_empty() && self.leave() {
                return;
            }
        }
    }

    /// Waits until something can be done.
    fn wait(&self) {
        let busy = self.instance.has_unheld() || self.tasks.values().any(|task| task.has_work());
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
            PollFd::new(&*self.bell, PollFlags::IN),
        ];
        // Interrupted or not: what there is to do is looked for.
        poll(&mut descriptors, timeout.as_ref()).ok();
        rustix::io::read(&*self.bell, &mut [0; 8]).ok();
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Add(id, begin) => match begin(&mut self.instance.of(id)) {
                Some(task) => {
                    self.tasks.insert(id, task);
                }
                None => self.instance.release_all(id),
            },
            Command::Remove(id) => {
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

    /// Closes the door, unless somebody is in it.
    fn leave(&mut self) -> bool {
        let mut door = door();
        match self.commands.try_recv() {
            Ok(command) => {
                drop(door);
                self.handle(command);
                false
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                *door = None;
                true
            }
        }
    }
}
