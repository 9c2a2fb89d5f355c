//! The thread of the instance: reads, hands out, waits. What to do is the tasks' business.

use std::{
    collections::BTreeMap,
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
    time::Instant,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::inotify::ReadFlags,
};

use super::{
    door::{self, Command, Door},
    event::{buffer, read},
    instance::{Instance, TaskId},
    task::Task,
};

/// What the thread owns.
pub(super) struct Hub {
    instance: Instance,
    tasks: BTreeMap<TaskId, Box<dyn Task>>,
    commands: Receiver<Command>,
    bell: Arc<OwnedFd>,
    buffer: Vec<MaybeUninit<u8>>,
}

impl Hub {
    /// Starts the thread. It ends by itself when it has no task left and the door is closed.
    pub(super) fn start() -> io::Result<Door> {
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
        Ok(Door::new(sender, bell))
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
                match door::close_unless_called(&self.commands) {
                    Some(command) => self.handle(command),
                    None => return,
                }
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
            Command::Add(id, begin) => {
                // What has happened before is not for the newcomer, who may share directories.
                self.read_events();
                match begin(&mut self.instance.of(id)) {
                    Some(task) => {
                        self.tasks.insert(id, task);
                    }
                    None => self.instance.release_all(id),
                }
            }
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
}
