//! The way to the thread, open while it runs.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender},
    },
};

use super::{hub::Hub, instance::TaskId, task::Begin};

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

/// Closes the door, unless somebody has come to it: then there is a command to do.
pub(super) fn close_unless_called(commands: &Receiver<Command>) -> Option<Command> {
    let mut door = door();
    let command = commands.try_recv().ok();
    if command.is_none() {
        *door = None;
    }
    command
}

fn door() -> MutexGuard<'static, Option<Door>> {
    DOOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way to the thread. Not bounded, because nobody may wait in a `drop`; there are two commands
/// for each watch, and who limits watches limits these.
pub(super) struct Door {
    commands: Sender<Command>,
    bell: Arc<OwnedFd>,
}

impl Door {
    pub(super) fn new(commands: Sender<Command>, bell: Arc<OwnedFd>) -> Self {
        Self { commands, bell }
    }

    fn send(&self, command: Command) -> Result<(), Command> {
        self.commands.send(command).map_err(|refused| refused.0)?;
        // It fails if it has been rung so often that nobody can have missed it.
        rustix::io::write(&*self.bell, &1_u64.to_ne_bytes()).ok();
        Ok(())
    }
}

/// What the thread is asked for.
pub(super) enum Command {
    /// To begin with a task.
    Add(TaskId, Begin),
    /// To end one, if it has not ended.
    Remove(TaskId),
}

static DOOR: Mutex<Option<Door>> = Mutex::new(None);
static NEXT_TASK: AtomicU64 = AtomicU64::new(0);
