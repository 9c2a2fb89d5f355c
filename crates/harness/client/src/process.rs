//! A process on a remote host: a thin proxy over the connection and the received events.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use exec_core::output_log::{
    FollowOptions, HeadTail, LogPage, OutputChunk, OutputLog, OutputSnapshot,
};
use exec_env::process::{
    EventStream, ExecProcess, OutputHold, OutputReadRequest, ProcessError, ProcessStatus,
};
use exec_wire::{
    error::{ErrorCode, RpcError},
    id::{OutputSeq, ProcessId, WriteId},
    limits,
    method::Method,
    process::{
        CloseStdin, OutputStream, ProcessSignal, ProcessSnapshot, ReadProcess, ResizeProcess,
        SignalProcess, SnapshotProcess, TerminalSize, TerminateMode, TerminateProcess, WaitProcess,
        WaitUntil, WriteResult, WriteStatus,
    },
};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::time;

use crate::{
    client::ExecServerClient,
    client_shared::{DeferredRelease, ReleaseGuard},
    driver::RetryPolicy,
    error::ExecServerError,
    events::{EventFollower, ProcessEvents, ProcessOwner, RemoteHold, has_reached},
    handshake::ServerKind,
};

/// Maximum write size. Leaves room for the encoding in a message.
const MAX_WRITE_BYTES: usize = limits::MAX_MESSAGE_BYTES / 2;

/// How late the response to a wait may be before the client stops waiting for it.
const WAIT_GRACE: Duration = Duration::from_millis(500);

/// A process on a server's host. Dropping the last handle terminates it, or detaches from it if it
/// is server-owned.
///
/// After the output of a server-owned process has ended, the client makes no more calls for it,
/// because its id may name another process. Descendants that it left running are terminated by id.
#[derive(Debug)]
pub struct RemoteProcess {
    client: ExecServerClient,
    events: Arc<ProcessEvents>,
    terminal: TerminalPresence,
    /// Counter for the ids of writes without an id.
    next_write: AtomicU64,
    /// Prefix of those ids. Other clients may write to a server-owned process.
    write_id_prefix: String,
    /// Detaches from a server-owned process.
    release_guard: Option<Arc<ReleaseGuard>>,
}

/// Whether a process has a terminal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum TerminalPresence {
    Present,
    Absent,
    /// Only the server knows.
    Unknown,
}

impl TerminalPresence {
    pub(crate) fn of(tty: bool) -> Self {
        if tty { Self::Present } else { Self::Absent }
    }
}

impl RemoteProcess {
    pub(crate) fn new(
        client: ExecServerClient,
        events: &Arc<ProcessEvents>,
        terminal: TerminalPresence,
    ) -> Self {
        let (write_id_prefix, release_guard) = match events.owner() {
            ProcessOwner::Session => ("exec-client".to_owned(), None),
            ProcessOwner::Server => {
                let number = RandomState::new().build_hasher().finish();
                let released = DeferredRelease::Attached(Arc::clone(events));
                let release_guard = ReleaseGuard::new(client.shared(), released);
                let prefix = format!("exec-client-{number:016x}");
                (prefix, Some(Arc::new(release_guard)))
            }
        };
        Self {
            client,
            events: Arc::clone(events),
            terminal,
            next_write: AtomicU64::new(0),
            write_id_prefix,
            release_guard,
        }
    }

    /// Returns the process if it is server-owned.
    fn target(&self) -> Option<Arc<ProcessEvents>> {
        self.release_guard
            .is_some()
            .then(|| Arc::clone(&self.events))
    }

    /// Returns whether the process is server-owned and closed. No calls are made for it then,
    /// because its id may name another process.
    fn is_closed_detached(&self) -> bool {
        self.release_guard.is_some() && self.events.is_closed()
    }

    /// Makes a call, unless the process is server-owned and closed. `closed_result` is the result
    /// then.
    fn unless_closed<T: Send + 'static>(
        &self,
        closed_result: T,
        call: impl FnOnce() -> BoxFuture<'static, Result<T, ProcessError>>,
    ) -> BoxFuture<'static, Result<T, ProcessError>> {
        let Some(events) = self.target() else {
            return call();
        };
        if events.is_closed() {
            return ready(Ok(closed_result)).boxed();
        }
        let call = call();
        async move {
            match call.await {
                // The process closed before the call was sent or retried.
                Err(error) if is_unknown(&error) && events.is_closed() => Ok(closed_result),
                answer => answer,
            }
        }
        .boxed()
    }

    /// Makes a call, unless the process has failed. Fails with the process while waiting.
    fn call<M, T>(
        &self,
        params: M,
        answer: impl FnOnce(M::Result) -> T + Send + 'static,
    ) -> BoxFuture<'static, Result<T, ProcessError>>
    where
        M: Method + Send + 'static,
        M::Result: Send,
        T: Send + 'static,
    {
        if let Err(error) = self.events.check_reachable() {
            return ready(Err(error)).boxed();
        }
        let call = self
            .client
            .call_with_retry(params, self.target(), RetryPolicy::of(M::NAME));
        let events = Arc::clone(&self.events);
        async move {
            tokio::select! {
                biased;
                result = call => result.map(answer).map_err(process_error),
                error = events.wait_for_failure() => Err(error),
            }
        }
        .boxed()
    }

    /// Returns whether the local log can replace the server's response: the process is closed, and
    /// its events are here. A server forgets a closed process after some time, and the session may
    /// be lost.
    fn has_local_result(&self, error: &ProcessError) -> bool {
        is_unreachable(error) && self.events.is_closed()
    }

    /// Prepends the held chunks that the server's page lacks, because a server does not retain
    /// output of a server-owned process for its readers. With a byte limit, the rest follows on the
    /// next page.
    fn prepend_held(&self, page: &mut LogPage, read: OutputReadRequest) {
        let first = page.chunks.first().map_or(page.next_seq, |chunk| chunk.seq);
        let log_page = self
            .events
            .with_log(|log| log.page(read.after, read.max_bytes));
        let mut chunks = log_page.chunks;
        chunks.retain(|chunk| chunk.seq < first);
        let Some(last) = chunks.last().map(|chunk| chunk.seq) else {
            return;
        };
        match read.max_bytes {
            None => chunks.append(&mut page.chunks),
            Some(_) => page.next_seq = last.next(),
        }
        page.chunks = chunks;
    }

    fn write_id(&self) -> WriteId {
        let number = self.next_write.fetch_add(1, Ordering::Relaxed);
        #[expect(clippy::expect_used, reason = "the text is short and not empty")]
        WriteId::new(&format!("{}-{number}", self.write_id_prefix))
            .expect("a short text is a valid write id")
    }
}

impl ExecProcess for RemoteProcess {
    fn id(&self) -> &ProcessId {
        self.events.id()
    }

    fn status(&self) -> ProcessStatus {
        self.events.status()
    }

    fn follow(&self, follow: FollowOptions) -> EventStream {
        let (client, release_guard) = (self.client.clone(), self.release_guard.clone());
        Box::pin(EventFollower::new(
            &self.events,
            follow,
            client,
            release_guard,
        ))
    }

    fn hold(&self, after: OutputSeq) -> Box<dyn OutputHold> {
        Box::new(RemoteHold::new(&self.events, after))
    }

    fn read(&self, read: OutputReadRequest) -> BoxFuture<'_, Result<LogPage, ProcessError>> {
        if self.client.server_kind() == ServerKind::Stock || self.is_closed_detached() {
            return self.events.read_local(read).boxed();
        }
        let params = ReadProcess {
            process_id: self.id().clone(),
            after_seq: Some(read.after),
            max_bytes: read.max_bytes,
            wait_ms: Some(millis(read.wait)),
            times: false,
        };
        let page = self.call(params, |page| page);
        async move {
            let page = match page.await {
                Err(error) if self.has_local_result(&error) => {
                    return Ok(self
                        .events
                        .with_log(|log| log.page(read.after, read.max_bytes)));
                }
                page => page?,
            };
            let exited = page.exited;
            let chunks = page.chunks.into_iter().map(|chunk| OutputChunk {
                seq: chunk.seq,
                stream: chunk.stream,
                data: chunk.chunk.0,
            });
            let mut page = LogPage {
                chunks: chunks.collect(),
                next_seq: page.next_seq,
                exit: None,
                exit_seq: page.exit_seq,
                closed: page.closed,
            };
            if self.release_guard.is_some() {
                self.prepend_held(&mut page, read);
            }
            if exited {
                // The exit status arrives as an event, before or after the response.
                page.exit = Some(self.events.wait_until(|log| log.exit().cloned()).await?);
            }
            Ok(page)
        }
        .boxed()
    }

    fn write(
        &self,
        id: Option<WriteId>,
        data: Bytes,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        let outcome = |result: Result<WriteResult, ExecServerError>| match result {
            Ok(result) => Ok(result.status),
            Err(ExecServerError::TooManyCalls(_) | ExecServerError::SendBufferFull(_)) => {
                Err(ProcessError::StdinFull)
            }
            Err(error) => Err(process_error(error)),
        };
        self.unless_closed(WriteStatus::StdinClosed, || {
            if let Err(error) = self.events.check_reachable() {
                return ready(Err(error)).boxed();
            }
            if data.len() > MAX_WRITE_BYTES {
                let text = format!("chunk exceeds {MAX_WRITE_BYTES} bytes");
                return ready(Err(RpcError::invalid_params(text).into())).boxed();
            }
            let write_id = id.unwrap_or_else(|| self.write_id());
            let (id, target) = (self.id().clone(), self.target());
            let written = self.client.write(id, write_id, data, target);
            written.map(outcome).boxed()
        })
    }

    fn close_stdin(
        &self,
        id: Option<WriteId>,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        let params = CloseStdin {
            process_id: self.id().clone(),
            // With an id, the call can be retried on another connection.
            write_id: Some(id.unwrap_or_else(|| self.write_id())),
        };
        self.unless_closed(WriteStatus::StdinClosed, || {
            self.call(params, |result| result.status)
        })
    }

    fn resize(&self, size: TerminalSize) -> BoxFuture<'static, Result<(), ProcessError>> {
        let TerminalSize { rows, cols } = size;
        if self.terminal == TerminalPresence::Absent {
            return ready(Err(ProcessError::NoTerminal(self.id().clone()))).boxed();
        }
        if rows == 0 || cols == 0 {
            return ready(Err(ProcessError::EmptySize)).boxed();
        }
        let params = ResizeProcess {
            process_id: self.id().clone(),
            rows,
            cols,
        };
        self.unless_closed((), || self.call(params, |_| ()))
    }

    fn signal(&self, signal: ProcessSignal) -> BoxFuture<'static, Result<(), ProcessError>> {
        let params = SignalProcess {
            process_id: self.id().clone(),
            signal,
        };
        self.unless_closed((), || self.call(params, |_| ()))
    }

    fn terminate(&self, mode: TerminateMode) -> BoxFuture<'static, Result<bool, ProcessError>> {
        if let Err(error) = self.client.server_kind().check_terminate(mode) {
            return ready(Err(error.into())).boxed();
        }
        let params = TerminateProcess {
            process_id: self.id().clone(),
            mode: Some(mode),
        };
        let is_running = false;
        self.unless_closed(is_running, || {
            if mode != TerminateMode::Force {
                return self.call(params, |result| result.running);
            }
            if let Err(error) = self.events.check_reachable() {
                return ready(Err(error)).boxed();
            }
            self.client
                .call_with_retry(params, self.target(), RetryPolicy::Always)
                .map(|result| result.map(|ended| ended.running).map_err(process_error))
                .boxed()
        })
    }

    fn wait(
        &self,
        until: WaitUntil,
        timeout: Option<Duration>,
    ) -> BoxFuture<'static, Result<ProcessStatus, ProcessError>> {
        let events = Arc::clone(&self.events);
        if events.with_log(|log| has_reached(log, until)).is_some() {
            return ready(Ok(events.status())).boxed();
        }
        if self.client.server_kind() == ServerKind::Stock {
            return async move { events.wait_local(until, timeout).await }.boxed();
        }
        let timeout_ms = timeout.map(millis);
        let params = WaitProcess {
            process_id: self.id().clone(),
            until,
            timeout_ms,
        };
        let answer = self.call(params, |result| result);
        // Both are needed to receive events.
        let (release_guard, server_owned) =
            (self.release_guard.clone(), self.release_guard.is_some());
        let attached = release_guard.map(|release_guard| (release_guard, self.client.clone()));
        async move {
            let _attached = attached;
            let ended = async {
                let answer = match answer.await {
                    // The process closed before the call was retried.
                    Err(error) if server_owned && is_unreachable(&error) && events.is_closed() => {
                        return Ok(());
                    }
                    answer => answer?,
                };
                // The corresponding events may arrive after the response.
                if answer.exited {
                    events
                        .wait_until(|log| has_reached(log, WaitUntil::Exited))
                        .await?;
                }
                if answer.closed {
                    events
                        .wait_until(|log| has_reached(log, WaitUntil::Closed))
                        .await?;
                }
                Ok::<_, ProcessError>(())
            };
            match timeout {
                None => ended.await?,
                // The response may be stuck behind unread output, so apply the timeout locally,
                // too.
                Some(limit) => time::timeout(limit.saturating_add(WAIT_GRACE), ended)
                    .await
                    .unwrap_or(Ok(()))?,
            }
            Ok(events.status())
        }
        .boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<OutputSnapshot, ProcessError>> {
        if self.client.server_kind() == ServerKind::Stock || self.is_closed_detached() {
            let events = &self.events;
            let snapshot = events
                .check()
                .map(|()| events.with_log(OutputLog::snapshot));
            return ready(snapshot).boxed();
        }
        let params = SnapshotProcess {
            process_id: self.id().clone(),
        };
        let snapshot = self.call(params, |snapshot| snapshot);
        async move {
            match snapshot.await {
                Err(error) if self.has_local_result(&error) => {
                    Ok(self.events.with_log(OutputLog::snapshot))
                }
                snapshot => Ok(split_omitted(snapshot?, self.events.written())),
            }
        }
        .boxed()
    }
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        if self.release_guard.is_none() {
            let released = DeferredRelease::Process(Arc::clone(&self.events));
            self.client.shared().release(released);
        }
    }
}

/// Returns whether the server does not know the process or is unreachable.
fn is_unreachable(error: &ProcessError) -> bool {
    is_unknown(error) || matches!(error, ProcessError::Disconnected(_))
}

/// Returns whether the server does not know the process, or has forgotten it.
fn is_unknown(error: &ProcessError) -> bool {
    matches!(error, ProcessError::Remote(error) if error.code == ErrorCode::INVALID_REQUEST)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn process_error(error: ExecServerError) -> ProcessError {
    match error.into_disconnect() {
        Ok(reason) => ProcessError::Disconnected(reason),
        Err(error) => ProcessError::Remote(error.into_rpc()),
    }
}

/// Splits the omitted bytes of a snapshot among its streams, because the wire reports only the
/// total. Bytes that were received on a stream and are not in the snapshot were omitted from it,
/// which is exact once all output has arrived.
pub(crate) fn split_omitted(snapshot: ProcessSnapshot, written: [u64; 3]) -> OutputSnapshot {
    let mut remaining = snapshot.omitted_bytes;
    let [stdout, stderr, terminal] = [
        (snapshot.stdout, OutputStream::Stdout),
        (snapshot.stderr, OutputStream::Stderr),
        (snapshot.terminal, OutputStream::Pty),
    ]
    .map(|(data, stream)| {
        let data = Vec::from(data.0);
        let omitted = written[stream as usize]
            .saturating_sub(data.len() as u64)
            .min(remaining);
        remaining -= omitted;
        HeadTail { data, omitted }
    });
    let mut snapshot = OutputSnapshot {
        stdout,
        stderr,
        terminal,
    };
    // Attribute bytes that were not received yet to the stream with output.
    let latest = if snapshot.terminal.data.is_empty() {
        &mut snapshot.stdout
    } else {
        &mut snapshot.terminal
    };
    latest.omitted += remaining;
    snapshot
}
