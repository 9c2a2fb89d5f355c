//! The stdin queue of a child: ordered, bounded, and idempotent by write id.

use std::{
    collections::{BTreeSet, VecDeque},
    os::fd::OwnedFd,
    sync::Arc,
};

use bytes::{Buf, Bytes};
use exec_wire::{id::WriteId, limits};
use rustix::io::{Errno, write};
use tokio::{io::unix::AsyncFd, sync::oneshot};

use crate::{child_input::ChildInput, stdio};

/// Most bytes queued for a child. A larger write is accepted if the queue is empty.
const QUEUE_BYTES: usize = 8 << 20;
/// Most writes that may wait for room in the queue, and their total bytes.
const WAITING_WRITES: usize = 1024;
const WAITING_BYTES: usize = 64 << 20;

/// Bytes on their way to a child's stdin.
#[derive(Debug)]
pub(crate) struct StdinQueue {
    target: StdinTarget,
    queue: VecDeque<StdinItem>,
    queued_bytes: usize,
    waiting: VecDeque<WaitingInput>,
    waiting_bytes: usize,
    accepted: AcceptedWrites,
    /// Whether anything was enqueued since the process task last checked.
    activity: bool,
}

#[derive(Debug)]
enum StdinTarget {
    /// The child has no stdin, or a client closed it.
    Closed,
    /// The parent's end of the pipe or terminal.
    Open {
        fd: Arc<AsyncFd<OwnedFd>>,
        terminal: bool,
    },
    /// The reader closed its end; further input is discarded.
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

/// Input that waits for room in the queue.
#[derive(Debug)]
struct WaitingInput {
    id: Option<WriteId>,
    item: StdinItem,
    callers: WriteCallers,
}

/// Callers that wait until a write is queued. A client that reconnects repeats the write and waits
/// again: it must not take it for queued, and send more.
#[derive(Debug, Default)]
pub(crate) struct WriteCallers(Vec<oneshot::Sender<()>>);

impl WriteCallers {
    /// Adds a caller. Those of earlier connections have stopped waiting.
    pub(crate) fn join(&mut self) -> oneshot::Receiver<()> {
        self.0.retain(|caller| !caller.is_closed());
        let (caller, wait) = oneshot::channel();
        self.0.push(caller);
        wait
    }

    /// Resolves all waits: the write is queued.
    pub(crate) fn release(self) {
        for caller in self.0 {
            // It may have stopped waiting.
            let _is_awaited = caller.send(());
        }
    }
}

/// Result of enqueuing input.
#[derive(Debug)]
pub(crate) enum EnqueueOutcome {
    /// Queued, or already written.
    Accepted,
    /// Waiting for room; resolves once queued.
    Waiting(oneshot::Receiver<()>),
    /// Stdin is closed.
    Closed,
    /// Too much input is waiting.
    Overflow,
    /// The journal of a durable process could not record the input.
    Unrecorded,
}

/// Ids of accepted writes, the most recent ones.
#[derive(Debug, Default)]
pub(crate) struct AcceptedWrites {
    ids: BTreeSet<WriteId>,
    order: VecDeque<WriteId>,
}

impl AcceptedWrites {
    pub(crate) fn contains(&self, id: &WriteId) -> bool {
        self.ids.contains(id)
    }

    pub(crate) fn insert(&mut self, id: WriteId) {
        if self.order.len() >= limits::REMEMBERED_WRITE_IDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        self.ids.insert(id.clone());
        self.order.push_back(id);
    }
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
            accepted: AcceptedWrites::default(),
            activity: false,
        }
    }
}

impl ChildInput for StdinQueue {
    fn write(&mut self, id: Option<WriteId>, data: Bytes) -> EnqueueOutcome {
        self.enqueue(id, StdinItem::Data(data))
    }

    fn close(&mut self, id: Option<WriteId>) -> EnqueueOutcome {
        self.enqueue(id, StdinItem::Eof)
    }

    fn take_activity(&mut self) -> bool {
        std::mem::take(&mut self.activity)
    }

    fn blocked(&self) -> Option<Arc<AsyncFd<OwnedFd>>> {
        match &self.target {
            StdinTarget::Open { fd, .. } if !self.queue.is_empty() => Some(Arc::clone(fd)),
            StdinTarget::Open { .. } | StdinTarget::Closed | StdinTarget::ReaderGone => None,
        }
    }

    fn flush(&mut self) {
        while let Some(item) = self.queue.front_mut() {
            let StdinTarget::Open { fd, terminal } = &self.target else {
                return self.discard();
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
                    return self.discard();
                }
            };
            match write(fd.get_ref(), data) {
                Ok(count) => {
                    let is_complete = count >= data.len();
                    if let StdinItem::Data(data) = item {
                        data.advance(count);
                        self.queued_bytes -= count;
                    }
                    if is_complete {
                        self.queue.pop_front();
                        self.admit_waiting();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    // The child closed its end.
                    return self.discard_input();
                }
            }
        }
    }

    fn discard_input(&mut self) {
        if matches!(self.target, StdinTarget::Open { .. }) {
            self.target = StdinTarget::ReaderGone;
        }
        self.discard();
    }
}

impl StdinQueue {
    fn enqueue(&mut self, id: Option<WriteId>, item: StdinItem) -> EnqueueOutcome {
        // Checked first: a repeated id is accepted again, even after the end of input.
        if id.as_ref().is_some_and(|id| self.accepted.contains(id)) {
            let waits = self.waiting.iter_mut().find(|input| input.id == id);
            return match waits {
                Some(input) => EnqueueOutcome::Waiting(input.callers.join()),
                None => EnqueueOutcome::Accepted,
            };
        }
        match &self.target {
            StdinTarget::Closed => return EnqueueOutcome::Closed,
            StdinTarget::ReaderGone => return EnqueueOutcome::Accepted,
            StdinTarget::Open { .. } => self.activity = true,
        }
        let length = item.len();
        let fits = self.queue.len() < limits::STDIN_QUEUE_CHUNKS
            && (self.queue.is_empty() || self.queued_bytes + length <= QUEUE_BYTES);
        if self.waiting.is_empty() && fits {
            id.into_iter().for_each(|id| self.accepted.insert(id));
            let was_empty = self.queue.is_empty();
            self.queued_bytes += length;
            self.queue.push_back(item);
            if was_empty {
                // Common case: the pipe has room, and the process task need not write.
                self.flush();
            }
            return EnqueueOutcome::Accepted;
        }
        if self.waiting.len() >= WAITING_WRITES || self.waiting_bytes + length > WAITING_BYTES {
            return EnqueueOutcome::Overflow;
        }
        id.iter().for_each(|id| self.accepted.insert(id.clone()));
        let mut callers = WriteCallers::default();
        let wait = callers.join();
        self.waiting_bytes += length;
        self.waiting.push_back(WaitingInput { id, item, callers });
        EnqueueOutcome::Waiting(wait)
    }

    /// Moves waiting writes into the queue while there is room.
    fn admit_waiting(&mut self) {
        while self.queue.len() < limits::STDIN_QUEUE_CHUNKS
            && let Some(input) = self.waiting.pop_front_if(|input| {
                self.queue.is_empty() || self.queued_bytes + input.item.len() <= QUEUE_BYTES
            })
        {
            self.waiting_bytes -= input.item.len();
            self.queued_bytes += input.item.len();
            self.queue.push_back(input.item);
            input.callers.release();
        }
    }

    fn discard(&mut self) {
        self.queue.clear();
        self.queued_bytes = 0;
        self.waiting_bytes = 0;
        for input in self.waiting.drain(..) {
            input.callers.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::{
        fs::{OFlags, fcntl_setfl},
        pipe::pipe,
    };
    use tokio::io::Interest;

    use super::*;

    #[tokio::test]
    async fn repeated_write_that_waits_is_queued_once_and_waits_again() {
        let (_reader, writer) = pipe().unwrap();
        fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
        let writer = stdio::register(writer, Interest::WRITABLE).unwrap();
        let mut queue = StdinQueue::pipe(Arc::new(writer));
        let data = Bytes::from(vec![0; QUEUE_BYTES]);
        let id = |number: u32| WriteId::new(&number.to_string()).unwrap();
        assert!(matches!(
            queue.write(Some(id(1)), data.clone()),
            EnqueueOutcome::Accepted
        ));
        let EnqueueOutcome::Waiting(first) = queue.write(Some(id(2)), data.clone()) else {
            panic!("the queue is full");
        };
        drop(first);
        let EnqueueOutcome::Waiting(again) = queue.write(Some(id(2)), data.clone()) else {
            panic!("the write is not queued yet");
        };
        assert_eq!((queue.waiting.len(), queue.waiting_bytes), (1, QUEUE_BYTES));
        assert!(matches!(
            queue.write(Some(id(1)), data),
            EnqueueOutcome::Accepted
        ));
        queue.discard_input();
        again.await.unwrap();
    }
}
