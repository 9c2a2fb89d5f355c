//! A process that writes what the test says, and tells whether it is paused.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::ready,
    time::Duration,
};

use bytes::Bytes;
use exec_core::log::{Exit, Follow, FollowedLog, FollowerId, OutputLog, Page, Retention, Snapshot};
use exec_env::process::{EventStream, ExecProcess, Hold, ProcessError, Read, Status};
use exec_wire::{
    id::{OutputSeq, ProcessId, WriteId},
    process::{
        ExitCause, OutputStream, ProcessSignal, TerminalSize, TerminateMode, WaitUntil, WriteStatus,
    },
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt, ready as at_once},
    stream,
};
use tokio::sync::watch;

/// What a process retains that nobody holds.
pub(crate) const RETAINED: usize = 4096;

/// A process, and what it wrote.
#[derive(Debug)]
pub(crate) struct Written {
    id: ProcessId,
    log: Arc<Mutex<FollowedLog>>,
    closed: watch::Sender<bool>,
    /// Whether something that it started runs on.
    left: AtomicBool,
}

impl Written {
    pub(crate) fn new(id: ProcessId) -> Self {
        let retention = Retention {
            bytes: RETAINED,
            chunks: 50_000,
        };
        Self {
            id,
            log: Arc::new(Mutex::new(FollowedLog::new(OutputLog::new(retention)))),
            closed: watch::Sender::new(false),
            left: AtomicBool::new(false),
        }
    }

    /// Writes this many chunks of 1 KiB; returns the number of the last.
    pub(crate) fn write(&self, chunks: usize) -> u64 {
        let chunk = Bytes::from_static(&[b'x'; 1024]);
        self.log().record(|log| {
            let seqs = (0..chunks).map(|_| log.append(OutputStream::Stdout, chunk.clone()));
            seqs.last().flatten().unwrap().0
        })
    }

    /// Ends it and its output; returns the number of the close.
    pub(crate) fn close(&self) -> u64 {
        let closed = self.log().record(|log| {
            log.record_exit(Exit {
                code: 0,
                signal: None,
                cause: ExitCause::Exit,
                usage: None,
                sandbox_denied: false,
            });
            log.record_close()
        });
        self.closed.send_replace(true);
        closed.unwrap().0
    }

    /// Ends it and its output, but not something that it started.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
        self.close();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.log().is_held()
    }

    pub(crate) fn retained(&self) -> usize {
        self.log().log().retained_bytes()
    }

    fn log(&self) -> MutexGuard<'_, FollowedLog> {
        self.log.lock().unwrap()
    }
}

/// A place in the log, given up when it is dropped.
#[derive(Debug)]
struct Place {
    log: Arc<Mutex<FollowedLog>>,
    id: FollowerId,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.log.lock().unwrap().unfollow(self.id);
    }
}

impl Hold for Place {
    fn acknowledge(&self, seq: OutputSeq) {
        self.log.lock().unwrap().acknowledge(self.id, seq);
    }
}

impl ExecProcess for Written {
    fn id(&self) -> &ProcessId {
        &self.id
    }

    fn status(&self) -> Status {
        let followed = self.log();
        let log = followed.log();
        Status {
            exit: log.exit().cloned(),
            closed: log.is_closed(),
            tree_alive: !log.is_closed() || self.left.load(Ordering::SeqCst),
            next_seq: log.next_seq(),
            retained_bytes: log.retained_bytes(),
            os_pid: None,
            started_at_ms: 0,
        }
    }

    fn follow(&self, follow: Follow) -> EventStream {
        let place = Place {
            log: Arc::clone(&self.log),
            id: self.log().follow(follow),
        };
        stream::poll_fn(move |cx| {
            let followed = ready!(place.log.lock().unwrap().poll_event(place.id, cx));
            followed.event.map(Into::into).into()
        })
        .boxed()
    }

    fn hold(&self, after: OutputSeq) -> Box<dyn Hold> {
        Box::new(Place {
            log: Arc::clone(&self.log),
            id: self.log().hold(after),
        })
    }

    fn read(&self, read: Read) -> BoxFuture<'_, Result<Page, ProcessError>> {
        let page = self.log().log().page(read.after, read.max_bytes);
        at_once(Ok(page)).boxed()
    }

    fn write(
        &self,
        _: Option<WriteId>,
        _: Bytes,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        at_once(Err(ProcessError::Terminated)).boxed()
    }

    fn close_stdin(
        &self,
        _: Option<WriteId>,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        at_once(Ok(WriteStatus::StdinClosed)).boxed()
    }

    fn resize(&self, _: TerminalSize) -> BoxFuture<'static, Result<(), ProcessError>> {
        at_once(Err(ProcessError::NoTerminal(self.id.clone()))).boxed()
    }

    fn signal(&self, _: ProcessSignal) -> BoxFuture<'static, Result<(), ProcessError>> {
        at_once(Ok(())).boxed()
    }

    fn terminate(&self, _: TerminateMode) -> BoxFuture<'static, Result<bool, ProcessError>> {
        at_once(Ok(true)).boxed()
    }

    fn wait(
        &self,
        _: WaitUntil,
        _: Option<Duration>,
    ) -> BoxFuture<'static, Result<Status, ProcessError>> {
        let status = Status {
            closed: true,
            ..self.status()
        };
        let mut closed = self.closed.subscribe();
        async move {
            drop(closed.wait_for(|closed| *closed).await);
            Ok(status)
        }
        .boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, ProcessError>> {
        at_once(Err(ProcessError::Terminated)).boxed()
    }
}
