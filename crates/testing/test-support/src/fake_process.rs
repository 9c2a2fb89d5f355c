//! Process that the test scripts: its output, its end, and its reaction to calls.

use std::{collections::VecDeque, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use exec_core::output_log::{
    ExitInfo, FollowOptions, FollowedLog, FollowerId, LogPage, OutputLog, OutputSnapshot,
    RetentionLimits,
};
use exec_env::process::{
    EventStream, ExecProcess, ExecProcessEvent, OutputHold, OutputReadRequest, ProcessError,
    ProcessStatus,
};
use exec_wire::{
    id::{OutputSeq, ProcessId, WriteId},
    process::{
        ExitCause, OutputStream, ProcessSignal, TerminalSize, TerminateMode, WaitUntil, WriteStatus,
    },
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt, ready},
    stream,
};
use tokio::sync::watch;

/// Controls of a scripted process. Clones control the same process.
///
/// It prints, exits and closes as the test says. It accepts all input, exits with 143 when it is
/// terminated and with 137 when its handle is dropped, unless the test says otherwise.
#[derive(Clone, Debug)]
pub struct FakeProcess(Arc<watch::Sender<FakeState>>);

/// A call that a process accepted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ProcessCall {
    /// Input.
    Write(Bytes),
    /// End of the input.
    CloseStdin,
    /// A signal.
    Signal(ProcessSignal),
    /// A termination.
    Terminate(TerminateMode),
    /// The last clone of the handle was dropped.
    Drop,
}

#[derive(Debug)]
struct FakeState {
    log: FollowedLog,
    failure: Option<ProcessError>,
    calls: Vec<ProcessCall>,
    /// Results of the next writes.
    write_script: VecDeque<Result<WriteStatus, ProcessError>>,
    /// Result of writes without a script.
    write_status: WriteStatus,
    write_latency: Duration,
    reads_stdin: bool,
    ignores_termination: bool,
    has_descendants: bool,
    prints_endlessly: bool,
}

impl Default for FakeProcess {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(FakeState {
            log: FollowedLog::new(OutputLog::new(RetentionLimits::default())),
            failure: None,
            calls: Vec::new(),
            write_script: VecDeque::new(),
            write_status: WriteStatus::Accepted,
            write_latency: Duration::ZERO,
            reads_stdin: true,
            ignores_termination: false,
            has_descendants: false,
            prints_endlessly: false,
        })))
    }
}

impl FakeProcess {
    /// Returns the process itself. Call it once: dropping the handle is recorded.
    pub fn handle(&self, id: ProcessId) -> Arc<dyn ExecProcess> {
        Arc::new(FakeHandle {
            id,
            process: self.clone(),
        })
    }

    /// Replaces the empty output log by one with these limits.
    pub fn limit_retention(&self, retention: RetentionLimits) {
        self.update(|state| state.log = FollowedLog::new(OutputLog::new(retention)));
    }

    /// Writes to stdout. Returns the sequence number, or `None` after the close.
    pub fn print(&self, data: impl AsRef<[u8]>) -> Option<OutputSeq> {
        self.print_to(OutputStream::Stdout, data)
    }

    /// Writes to a stream. Returns the sequence number, or `None` after the close.
    pub fn print_to(&self, stream: OutputStream, data: impl AsRef<[u8]>) -> Option<OutputSeq> {
        let data = Bytes::copy_from_slice(data.as_ref());
        self.update(|state| state.log.record(|log| log.append(stream, data)))
    }

    /// Always has more output for a follower.
    pub fn print_endlessly(&self) {
        self.update(|state| state.prints_endlessly = true);
    }

    /// Exits with a code.
    #[track_caller]
    pub fn exit(&self, code: i32) {
        self.exit_with(exit_info(code));
    }

    /// Exits.
    #[track_caller]
    pub fn exit_with(&self, exit: ExitInfo) {
        let exited = self.update(|state| state.log.record(|log| log.record_exit(exit)));
        assert!(exited.is_some(), "process exited before");
    }

    /// Closes the output. Returns the sequence number.
    #[track_caller]
    pub fn close(&self) -> OutputSeq {
        let closed = self.update(|state| state.log.record(OutputLog::record_close));
        closed.expect("process closed before, or has not exited")
    }

    /// Leaves descendants alive after the close.
    pub fn leave_descendants(&self) {
        self.update(|state| state.has_descendants = true);
    }

    /// Fails every follower and every wait.
    pub fn fail(&self, error: ProcessError) {
        self.update(|state| {
            state.failure = Some(error);
            state.log.record(|_| ());
        });
    }

    /// Sets the results of the next writes.
    pub fn script_writes(
        &self,
        results: impl IntoIterator<Item = Result<WriteStatus, ProcessError>>,
    ) {
        self.update(|state| state.write_script.extend(results));
    }

    /// Sets the result of writes without a script.
    pub fn set_write_status(&self, status: WriteStatus) {
        self.update(|state| state.write_status = status);
    }

    /// Delays the completion of writes.
    pub fn delay_writes(&self, latency: Duration) {
        self.update(|state| state.write_latency = latency);
    }

    /// Blocks writes while the process does not read its stdin.
    pub fn set_reading(&self, reads_stdin: bool) {
        self.update(|state| state.reads_stdin = reads_stdin);
    }

    /// Goes on when it is terminated.
    pub fn ignore_termination(&self) {
        self.update(|state| state.ignores_termination = true);
    }

    /// Waits for the call with this index.
    pub async fn call(&self, index: usize) -> ProcessCall {
        let mut state = self.0.subscribe();
        let state = state.wait_for(|state| state.calls.len() > index).await;
        state.expect("this process sends").calls[index].clone()
    }

    /// Returns all calls so far.
    pub fn calls(&self) -> Vec<ProcessCall> {
        self.0.borrow().calls.clone()
    }

    /// Returns the input so far, and whether stdin was closed.
    pub fn input(&self) -> (Vec<u8>, bool) {
        let calls = self.calls();
        let writes = calls.iter().filter_map(|call| match call {
            ProcessCall::Write(data) => Some(&data[..]),
            ProcessCall::CloseStdin
            | ProcessCall::Signal(_)
            | ProcessCall::Terminate(_)
            | ProcessCall::Drop => None,
        });
        let input = writes.collect::<Vec<_>>().concat();
        (input, calls.contains(&ProcessCall::CloseStdin))
    }

    /// Returns whether the handle was dropped.
    pub fn is_dropped(&self) -> bool {
        self.0.borrow().calls.contains(&ProcessCall::Drop)
    }

    /// Returns whether a follower or a hold pauses the process.
    pub fn is_paused(&self) -> bool {
        self.0.borrow().log.is_backpressured()
    }

    /// Returns the bytes of retained output.
    pub fn retained_bytes(&self) -> usize {
        self.0.borrow().log.log().retained_bytes()
    }

    fn status(&self) -> ProcessStatus {
        let state = self.0.borrow();
        let log = state.log.log();
        ProcessStatus {
            exit: log.exit().cloned(),
            closed: log.is_closed(),
            tree_alive: !log.is_closed() || state.has_descendants,
            next_seq: log.next_seq(),
            retained_bytes: log.retained_bytes(),
            os_pid: None,
            started_at_ms: 0,
        }
    }

    fn update<T>(&self, change: impl FnOnce(&mut FakeState) -> T) -> T {
        let mut changed = None;
        self.0.send_modify(|state| changed = Some(change(state)));
        changed.expect("the change ran")
    }
}

/// Returns the information of a plain exit.
pub fn exit_info(code: i32) -> ExitInfo {
    ExitInfo {
        code,
        signal: None,
        cause: ExitCause::Exit,
        usage: None,
        sandbox_denied: false,
    }
}

impl FakeState {
    /// Ends the process if it runs.
    fn kill(&mut self, code: i32) {
        let exit = ExitInfo {
            cause: ExitCause::Terminated,
            ..exit_info(code)
        };
        self.log.record(|log| {
            log.record_exit(exit);
            log.record_close();
        });
    }

    /// Returns the result of a write and its latency, and records the call if it is accepted.
    fn write(&mut self, call: ProcessCall) -> (Result<WriteStatus, ProcessError>, Duration) {
        let result = self.write_script.pop_front();
        let result = result.unwrap_or(Ok(self.write_status));
        if result == Ok(WriteStatus::Accepted) {
            self.calls.push(call);
        }
        (result, self.write_latency)
    }
}

/// The process behind the controls.
#[derive(Debug)]
struct FakeHandle {
    id: ProcessId,
    process: FakeProcess,
}

impl FakeHandle {
    /// Writes at once if the process reads, otherwise as soon as it does.
    fn write_call(
        &self,
        call: ProcessCall,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        let process = self.process.clone();
        let mut call = Some(call);
        let mut write = move |state: &mut FakeState| match state.reads_stdin {
            true => call.take().map(|call| state.write(call)),
            false => None,
        };
        let mut written = process.update(&mut write);
        async move {
            while written.is_none() {
                let mut state = process.0.subscribe();
                state
                    .wait_for(|state| state.reads_stdin)
                    .await
                    .map(drop)
                    .ok();
                written = process.update(&mut write);
            }
            let (result, latency) = written.expect("it was written");
            if !latency.is_zero() {
                tokio::time::sleep(latency).await;
            }
            result
        }
        .boxed()
    }
}

impl Drop for FakeHandle {
    fn drop(&mut self) {
        self.process.update(|state| {
            state.calls.push(ProcessCall::Drop);
            state.kill(137);
        });
    }
}

/// A follower of the log. Dropping it unfollows.
#[derive(Debug)]
struct FakeFollower {
    process: FakeProcess,
    id: FollowerId,
}

impl Drop for FakeFollower {
    fn drop(&mut self) {
        self.process.update(|state| state.log.unfollow(self.id));
    }
}

impl OutputHold for FakeFollower {
    fn acknowledge(&self, seq: OutputSeq) {
        let acknowledge = |state: &mut FakeState| state.log.acknowledge(self.id, seq);
        self.process.update(acknowledge);
    }
}

impl ExecProcess for FakeHandle {
    fn id(&self) -> &ProcessId {
        &self.id
    }

    fn status(&self) -> ProcessStatus {
        self.process.status()
    }

    fn follow(&self, follow: FollowOptions) -> EventStream {
        let follower = FakeFollower {
            process: self.process.clone(),
            id: self.process.update(|state| state.log.follow(follow)),
        };
        let mut failed = false;
        stream::poll_fn(move |cx| {
            follower.process.update(|state| {
                if state.prints_endlessly {
                    let data = Bytes::from_static(b"more");
                    state
                        .log
                        .record(|log| log.append(OutputStream::Stdout, data));
                }
                match state.log.poll_event(follower.id, cx) {
                    Poll::Ready(followed) => Poll::Ready(followed.event.map(Into::into)),
                    Poll::Pending => match state.failure.clone() {
                        None => Poll::Pending,
                        Some(_) if failed => Poll::Ready(None),
                        Some(error) => {
                            failed = true;
                            Poll::Ready(Some(ExecProcessEvent::Failed(error)))
                        }
                    },
                }
            })
        })
        .boxed()
    }

    fn hold(&self, after: OutputSeq) -> Box<dyn OutputHold> {
        Box::new(FakeFollower {
            process: self.process.clone(),
            id: self.process.update(|state| state.log.retain_unacked(after)),
        })
    }

    fn read(&self, read: OutputReadRequest) -> BoxFuture<'_, Result<LogPage, ProcessError>> {
        let state = self.process.0.borrow();
        ready(Ok(state.log.log().page(read.after, read.max_bytes))).boxed()
    }

    fn write(
        &self,
        _: Option<WriteId>,
        data: Bytes,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        self.write_call(ProcessCall::Write(data))
    }

    fn close_stdin(
        &self,
        _: Option<WriteId>,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        self.write_call(ProcessCall::CloseStdin)
    }

    fn resize(&self, _: TerminalSize) -> BoxFuture<'static, Result<(), ProcessError>> {
        ready(Err(ProcessError::NoTerminal(self.id.clone()))).boxed()
    }

    fn signal(&self, signal: ProcessSignal) -> BoxFuture<'static, Result<(), ProcessError>> {
        self.process
            .update(|state| state.calls.push(ProcessCall::Signal(signal)));
        ready(Ok(())).boxed()
    }

    fn terminate(&self, mode: TerminateMode) -> BoxFuture<'static, Result<bool, ProcessError>> {
        let running = self.process.update(|state| {
            let running = state.log.log().exit().is_none();
            state.calls.push(ProcessCall::Terminate(mode));
            if !state.ignores_termination {
                state.kill(143);
            }
            running
        });
        ready(Ok(running)).boxed()
    }

    fn wait(
        &self,
        until: WaitUntil,
        timeout: Option<Duration>,
    ) -> BoxFuture<'static, Result<ProcessStatus, ProcessError>> {
        let process = self.process.clone();
        async move {
            let mut state = process.0.subscribe();
            let ends = async {
                let ended = state.wait_for(|state| {
                    let log = state.log.log();
                    let ended = match until {
                        WaitUntil::Exited => log.exit().is_some(),
                        WaitUntil::Closed => log.is_closed(),
                    };
                    ended || state.failure.is_some()
                });
                ended
                    .await
                    .map(|state| state.failure.clone())
                    .ok()
                    .flatten()
            };
            let failure = match timeout {
                None => ends.await,
                Some(limit) => tokio::time::timeout(limit, ends).await.ok().flatten(),
            };
            failure.map_or_else(|| Ok(process.status()), Err)
        }
        .boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<OutputSnapshot, ProcessError>> {
        ready(Ok(self.process.0.borrow().log.log().snapshot())).boxed()
    }
}
