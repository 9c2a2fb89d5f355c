//! The way to a child's stdin: ordered, bounded, and safe to repeat.

use std::{
    collections::{BTreeSet, VecDeque},
    os::fd::OwnedFd,
    sync::Arc,
};

use bytes::{Buf, Bytes};
use exec_wire::{id::WriteId, limits};
use rustix::io::{Errno, write};
use tokio::{io::unix::AsyncFd, sync::oneshot};

use crate::stdio;

/// Bytes that may be queued for a child; a single larger write is taken when the queue is empty.
const QUEUE_BYTES: usize = 8 << 20;
/// Writes that may wait for a place in the queue, and their bytes.
const WAITING_WRITES: usize = 1024;
const WAITING_BYTES: usize = 64 << 20;

/// What is on its way to a child.
#[derive(Debug)]
pub(crate) struct StdinQueue {
    target: StdinTarget,
    queue: VecDeque<StdinItem>,
    queued_bytes: usize,
    waiting: VecDeque<(StdinItem, oneshot::Sender<()>)>,
    waiting_bytes: usize,
    accepted: BTreeSet<WriteId>,
    accepted_order: VecDeque<WriteId>,
    /// Something was put in since the owner last looked.
    activity: bool,
}

#[derive(Debug)]
enum StdinTarget {
    /// There never was a way in, or a client closed it.
    Closed,
    /// Our end of the pipe or terminal.
    Open {
        fd: Arc<AsyncFd<OwnedFd>>,
        terminal: bool,
    },
    /// Nobody reads any more; what is written is discarded.
    ReaderGone,
}

#[derive(Debug)]
enum StdinItem {
    Data(Bytes),
    Eof,
}

impl StdinItem {
    fn len(&self) -> usize {
        match self {
            Self::Data(data) => data.len(),
            Self::Eof => 0,
        }
    }
}

/// What became of something put in.
#[derive(Debug)]
pub(crate) enum EnqueueOutcome {
    /// It is queued, or written already.
    Accepted,
    /// It is in line, and queued when this resolves.
    Waiting(oneshot::Receiver<()>),
    /// There is no way in.
    Closed,
    /// The line is too long.
    Overflow,
}

impl StdinQueue {
    pub(crate) fn none() -> Self {
        Self::to(StdinTarget::Closed)
    }

    pub(crate) fn pipe(fd: Arc<AsyncFd<OwnedFd>>) -> Self {
        Self::to(StdinTarget::Open {
            fd,
            terminal: false,
        })
    }

    pub(crate) fn terminal(fd: Arc<AsyncFd<OwnedFd>>) -> Self {
        Self::to(StdinTarget::Open { fd, terminal: true })
    }

    fn to(target: StdinTarget) -> Self {
        Self {
            target,
            queue: VecDeque::new(),
            queued_bytes: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            accepted: BTreeSet::new(),
            accepted_order: VecDeque::new(),
            activity: false,
        }
    }

    /// Puts bytes in line, unless a write of this id is or was in it.
    pub(crate) fn write(&mut self, id: Option<WriteId>, data: Bytes) -> EnqueueOutcome {
        self.enqueue(id, StdinItem::Data(data))
    }

    /// Puts the end of input in line.
    pub(crate) fn close(&mut self, id: Option<WriteId>) -> EnqueueOutcome {
        self.enqueue(id, StdinItem::Eof)
    }

    /// Tells whether something was put in since the last time this was asked.
    pub(crate) fn take_activity(&mut self) -> bool {
        std::mem::take(&mut self.activity)
    }

    /// Returns where to wait until more can be written, if anything is queued.
    pub(crate) fn blocked(&self) -> Option<Arc<AsyncFd<OwnedFd>>> {
        match &self.target {
            StdinTarget::Open { fd, .. } if !self.queue.is_empty() => Some(Arc::clone(fd)),
            StdinTarget::Open { .. } | StdinTarget::Closed | StdinTarget::ReaderGone => None,
        }
    }

    /// Writes what the child takes now. Returns whether anything was taken.
    pub(crate) fn flush(&mut self) -> bool {
        let mut progress = false;
        while let Some(item) = self.queue.front_mut() {
            let StdinTarget::Open { fd, terminal } = &self.target else {
                self.discard();
                return true;
            };
            let end_of_file;
            let data: &[u8] = match item {
                StdinItem::Data(data) => data,
                StdinItem::Eof if *terminal => {
                    end_of_file = [stdio::end_of_file(fd.get_ref())];
                    &end_of_file
                }
                StdinItem::Eof => {
                    self.target = StdinTarget::Closed;
                    self.discard();
                    return true;
                }
            };
            match write(fd.get_ref(), data) {
                Ok(count) => {
                    progress = true;
                    let whole = count >= data.len();
                    if let StdinItem::Data(data) = item {
                        data.advance(count);
                        self.queued_bytes -= count;
                    }
                    if whole {
                        self.queue.pop_front();
                        self.admit_waiting();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    // The child closed its end.
                    self.discard_input();
                    return true;
                }
            }
        }
        progress
    }

    /// Nobody will read any more: lets go of the descriptor and of all that waits.
    pub(crate) fn discard_input(&mut self) {
        if matches!(self.target, StdinTarget::Open { .. }) {
            self.target = StdinTarget::ReaderGone;
        }
        self.discard();
    }

    fn enqueue(&mut self, id: Option<WriteId>, item: StdinItem) -> EnqueueOutcome {
        // First: what was accepted once is accepted again, also after the end of input.
        if id.as_ref().is_some_and(|id| self.accepted.contains(id)) {
            return EnqueueOutcome::Accepted;
        }
        match &self.target {
            StdinTarget::Closed => return EnqueueOutcome::Closed,
            StdinTarget::ReaderGone => return EnqueueOutcome::Accepted,
            StdinTarget::Open { .. } => self.activity = true,
        }
        let length = item.len();
        let room = self.queue.len() < limits::STDIN_QUEUE_CHUNKS
            && (self.queue.is_empty() || self.queued_bytes + length <= QUEUE_BYTES);
        if self.waiting.is_empty() && room {
            self.remember_id(id);
            let was_empty = self.queue.is_empty();
            self.queued_bytes += length;
            self.queue.push_back(item);
            if was_empty {
                // The usual case: the child reads, and nobody needs to be woken for it.
                self.flush();
            }
            return EnqueueOutcome::Accepted;
        }
        if self.waiting.len() >= WAITING_WRITES || self.waiting_bytes + length > WAITING_BYTES {
            return EnqueueOutcome::Overflow;
        }
        self.remember_id(id);
        let (queued, wait) = oneshot::channel();
        self.waiting_bytes += length;
        self.waiting.push_back((item, queued));
        EnqueueOutcome::Waiting(wait)
    }

    fn remember_id(&mut self, id: Option<WriteId>) {
        let Some(id) = id else { return };
        if self.accepted_order.len() >= limits::REMEMBERED_WRITE_IDS
            && let Some(oldest) = self.accepted_order.pop_front()
        {
            self.accepted.remove(&oldest);
        }
        self.accepted.insert(id.clone());
        self.accepted_order.push_back(id);
    }

    /// Moves what waits into the queue as far as there is room.
    fn admit_waiting(&mut self) {
        while self.queue.len() < limits::STDIN_QUEUE_CHUNKS
            && let Some((item, queued)) = self.waiting.pop_front_if(|(item, _)| {
                self.queue.is_empty() || self.queued_bytes + item.len() <= QUEUE_BYTES
            })
        {
            self.waiting_bytes -= item.len();
            self.queued_bytes += item.len();
            self.queue.push_back(item);
            // A caller that gave up needs no answer.
            let _ = queued.send(());
        }
    }

    fn discard(&mut self) {
        self.queue.clear();
        self.queued_bytes = 0;
        self.waiting_bytes = 0;
        for (_, queued) in self.waiting.drain(..) {
            let _ = queued.send(());
        }
    }
}
