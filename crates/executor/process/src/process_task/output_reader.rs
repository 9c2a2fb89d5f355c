//! Reads one output pipe or terminal of a child.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    io,
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use exec_wire::{limits, process::OutputStream};
use rustix::{buffer::spare_capacity, io::read, thread::sched_yield};
use tokio::{
    io::unix::AsyncFd,
    time::{Sleep, sleep},
};

use crate::{
    durable_record::{DurableRecord, HoldingPipe, OutputError},
    local_process::SharedState,
    stdio,
};

/// Read size for a pipe that has filled a whole buffer once: the capacity of an enlarged pipe.
const BULK_BYTES: usize = stdio::LARGE_BYTES;

/// A terminal read of at least this many bytes counts as bulk output. A keystroke's echo is
/// shorter.
const LARGE_TERMINAL_READ: usize = 1 << 10;
/// This many large reads in a row make the output of a terminal sustained.
const SUSTAINED_READS: u32 = 2;
/// How long to wait after reading a terminal with sustained output. The kernel moves output into a
/// buffer of 4 KiB and returns at most that. A reader that returns at once gets a fragment, and
/// contends with the writer for the terminal's locks.
const TERMINAL_REFILL: Duration = Duration::from_micros(20);
/// A `sched_yield` that takes longer than this shows that other programs compete for the CPU.
const LONG_YIELD: Duration = Duration::from_micros(200);
/// How long a terminal is read without waiting after a long yield. Waiting pays off only if the
/// writer runs meanwhile.
const EAGER_PERIOD: Duration = Duration::from_millis(250);

thread_local! {
    /// Read buffers, one of each size per thread, so that an idle process holds no buffer.
    static BUFFERS: RefCell<[Vec<u8>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

#[derive(Debug)]
pub(crate) struct OutputReader {
    fd: Arc<AsyncFd<OwnedFd>>,
    kind: OutputKind,
    /// Whether a read has filled a buffer. The pipe was enlarged then, and is read with
    /// `BULK_BYTES`.
    bulk: bool,
    refill: TerminalRefill,
    /// Journal of a durable process, which output enters before it is read.
    journal: Option<JournaledSource>,
}

/// Moves output through a journal.
#[derive(Debug)]
struct JournaledSource {
    record: Arc<DurableRecord>,
    /// Pipe behind a terminal.
    holding_pipe: Option<HoldingPipe>,
    /// Runs while the journal takes no output.
    pause: Option<Pin<Box<Sleep>>>,
    /// Whether output may be available that the descriptor does not announce: in the holding pipe,
    /// or moved but not committed.
    has_moved: bool,
}

/// Kind of an output descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OutputKind {
    /// A pipe that carries this stream.
    Pipe(OutputStream),
    /// The parent's end of a pseudo-terminal.
    Terminal,
}

impl OutputReader {
    pub(crate) fn new(fd: Arc<AsyncFd<OwnedFd>>, kind: OutputKind) -> Self {
        Self {
            fd,
            kind,
            bulk: false,
            refill: TerminalRefill::default(),
            journal: None,
        }
    }

    /// Moves the output through a journal, from a terminal through a holding pipe.
    pub(crate) fn journaled(
        self,
        record: Arc<DurableRecord>,
        holding_pipe: Option<HoldingPipe>,
    ) -> Self {
        let journal = JournaledSource {
            record,
            holding_pipe,
            pause: None,
            has_moved: true,
        };
        Self {
            journal: Some(journal),
            ..self
        }
    }

    pub(super) fn stream(&self) -> OutputStream {
        match self.kind {
            OutputKind::Pipe(stream) => stream,
            OutputKind::Terminal => OutputStream::Pty,
        }
    }

    /// Reads without waiting. `None`: nothing available. `Some(None)`: end of output.
    pub(super) fn read_now(&mut self, shared: &SharedState) -> Option<Option<Bytes>> {
        if let Some(journal) = &self.journal {
            return match journal.read(self.fd.get_ref(), self.stream(), shared) {
                Ok(data) => Some(data),
                Err(OutputError::WouldBlock | OutputError::Paused(_)) => None,
                Err(OutputError::Failed) => Some(None),
            };
        }
        match self.read() {
            Ok(data) => Some(data),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(_) => Some(None),
        }
    }

    /// Moves output into the journal and returns it.
    fn poll_journal(&mut self, cx: &mut Context<'_>, shared: &SharedState) -> Poll<Option<Bytes>> {
        let (fd, stream, kind) = (Arc::clone(&self.fd), self.stream(), self.kind);
        let Some(journal) = &mut self.journal else {
            return Poll::Ready(None);
        };
        loop {
            if let Some(pause) = &mut journal.pause {
                ready!(pause.as_mut().poll(cx));
                journal.pause = None;
            }
            let mut readiness = None;
            if !std::mem::take(&mut journal.has_moved) {
                let Ok(ready) = ready!(fd.poll_read_ready(cx)) else {
                    return Poll::Ready(None);
                };
                readiness = Some(ready);
            }
            match journal.read(fd.get_ref(), stream, shared) {
                Ok(data) => {
                    let length = data.as_ref().map_or(0, Bytes::len);
                    if kind == OutputKind::Terminal {
                        self.refill.note_read(length);
                    } else if length == limits::OUTPUT_CHUNK_BYTES && !self.bulk {
                        self.bulk = true;
                        stdio::enlarge(fd.get_ref());
                    }
                    return Poll::Ready(data);
                }
                Err(OutputError::WouldBlock) => {
                    if let Some(mut ready) = readiness {
                        ready.clear_ready();
                    }
                }
                Err(OutputError::Paused(time)) => {
                    journal.has_moved = true;
                    journal.pause = Some(Box::pin(sleep(time)));
                }
                Err(OutputError::Failed) => return Poll::Ready(None),
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, shared: &SharedState) -> Poll<Option<Bytes>> {
        ready!(self.refill.poll_ready(cx));
        if self.journal.is_some() {
            return self.poll_journal(cx, shared);
        }
        loop {
            let fd = Arc::clone(&self.fd);
            let Ok(mut ready) = ready!(fd.poll_read_ready(cx)) else {
                return Poll::Ready(None);
            };
            match ready.try_io(|_| self.read()) {
                Ok(Ok(data)) => {
                    // A short read means that a pipe is empty. A terminal returns its data in
                    // pieces and may have more.
                    let short = data
                        .as_ref()
                        .is_some_and(|data| data.len() < self.read_size());
                    if short && self.kind != OutputKind::Terminal {
                        ready.clear_ready();
                    }
                    if self.kind == OutputKind::Terminal {
                        self.refill.note_read(data.as_ref().map_or(0, Bytes::len));
                    }
                    return Poll::Ready(data);
                }
                // Reading a terminal fails with EIO once the child's end is closed.
                Ok(Err(_)) => return Poll::Ready(None),
                Err(_would_block) => {}
            }
        }
    }

    fn read(&mut self) -> io::Result<Option<Bytes>> {
        let read_size = self.read_size();
        let data = BUFFERS.with_borrow_mut(|buffers| {
            let buffer = &mut buffers[usize::from(self.bulk)];
            buffer.clear();
            buffer.reserve_exact(read_size);
            let count = read(self.fd.get_ref(), spare_capacity(buffer))?;
            // A read that fills at least half the buffer keeps it. A smaller one is copied, so that
            // the output log does not retain mostly empty buffers.
            Ok::<_, io::Error>(if count == 0 {
                None
            } else if count >= read_size / 2 {
                Some(Bytes::from(std::mem::take(buffer)))
            } else {
                Some(Bytes::copy_from_slice(buffer))
            })
        })?;
        let full = data.as_ref().is_some_and(|data| data.len() == read_size);
        if full && !self.bulk && self.kind != OutputKind::Terminal {
            self.bulk = true;
            stdio::enlarge(self.fd.get_ref());
        }
        Ok(data)
    }

    fn read_size(&self) -> usize {
        if self.bulk {
            BULK_BYTES
        } else {
            limits::OUTPUT_CHUNK_BYTES
        }
    }
}

impl JournaledSource {
    fn read(
        &self,
        fd: &OwnedFd,
        stream: OutputStream,
        shared: &SharedState,
    ) -> Result<Option<Bytes>, OutputError> {
        let holding_pipe = self.holding_pipe.as_ref();
        // Each time: acknowledgements arrive while the journal takes no output.
        self.record.protect(shared.protected_after());
        self.record.read_output(stream, fd, holding_pipe)
    }
}

/// Paces the reads of a terminal with sustained output, so that each one finds a full buffer.
#[derive(Debug, Default)]
struct TerminalRefill {
    /// Number of large reads in a row.
    large_reads: u32,
    /// Earliest time of the next read.
    refilled_at: Option<Instant>,
    /// Until when reads do not wait.
    eager_until: Option<Instant>,
}

impl TerminalRefill {
    /// Waits until the terminal may be read again. Timers are too coarse for this wait, so it is
    /// busy polling: other tasks run meanwhile, and `sched_yield` offers the CPU to the writer.
    fn poll_ready(&mut self, cx: &Context<'_>) -> Poll<()> {
        let Some(refilled_at) = self.refilled_at else {
            return Poll::Ready(());
        };
        let now = Instant::now();
        if now < refilled_at {
            sched_yield();
            let after = Instant::now();
            if after - now < LONG_YIELD {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.eager_until = Some(after + EAGER_PERIOD);
        }
        self.refilled_at = None;
        Poll::Ready(())
    }

    /// Decides after a read whether to wait before the next one.
    fn note_read(&mut self, bytes: usize) {
        if bytes < LARGE_TERMINAL_READ {
            self.large_reads = 0;
            return;
        }
        self.large_reads = self.large_reads.saturating_add(1);
        if self.large_reads < SUSTAINED_READS {
            return;
        }
        let now = Instant::now();
        if self.eager_until.is_none_or(|until| until <= now) {
            self.refilled_at = Some(now + TERMINAL_REFILL);
        }
    }
}

/// Reads from the first source that has data; `None` is its end. Cancel safe.
pub(super) async fn read_any(
    sources: &mut [OutputReader],
    shared: &SharedState,
) -> (usize, Option<Bytes>) {
    poll_fn(|cx| {
        for (index, source) in sources.iter_mut().enumerate() {
            if let Poll::Ready(data) = source.poll_read(cx, shared) {
                return Poll::Ready((index, data));
            }
        }
        Poll::Pending
    })
    .await
}
