//! A process that the test scripts.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use exec_core::output_log::{
    ExitInfo, FollowOptions, FollowedLog, FollowerId, LogPage, OutputLog, OutputSnapshot,
    RetentionLimits,
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

use crate::process::{
    EventStream, ExecProcess, ExecProcessEvent, OutputHold, OutputReadRequest, ProcessError,
    ProcessStatus,
};

#[derive(Debug)]
pub(in crate::process) struct FakeProcess {
    id: ProcessId,
    state: Arc<Mutex<FakeState>>,
}

#[derive(Debug)]
struct FakeState {
    log: FollowedLog,
    failure: Option<ProcessError>,
    /// Results of the next writes; later writes are accepted.
    answers: VecDeque<Result<WriteStatus, ProcessError>>,
    /// Accepted input.
    input: Vec<u8>,
    stdin_closed: bool,
    terminated: Option<TerminateMode>,
    /// Writes output on every poll.
    endless: bool,
}

impl FakeProcess {
    pub(in crate::process) fn new(id: &str) -> Self {
        Self::with_retention(id, RetentionLimits::default())
    }

    pub(in crate::process) fn with_retention(id: &str, retention: RetentionLimits) -> Self {
        let state = FakeState {
            log: FollowedLog::new(OutputLog::new(retention)),
            failure: None,
            answers: VecDeque::new(),
            input: Vec::new(),
            stdin_closed: false,
            terminated: None,
            endless: false,
        };
        Self {
            id: ProcessId::new(id).unwrap(),
            state: Arc::new(Mutex::new(state)),
        }
    }

    pub(in crate::process) fn print(&self, text: &str) {
        let data = Bytes::copy_from_slice(text.as_bytes());
        let mut state = self.lock();
        let printed = state
            .log
            .record(|log| log.append(OutputStream::Stdout, data));
        assert!(printed.is_some(), "process is closed");
    }

    pub(in crate::process) fn exit(&self, code: i32) {
        let exit = ExitInfo {
            code,
            signal: None,
            cause: ExitCause::Exit,
            usage: None,
            sandbox_denied: false,
        };
        let recorded = self.lock().log.record(|log| log.record_exit(exit));
        assert!(recorded.is_some(), "process exited before");
    }

    pub(in crate::process) fn close(&self) {
        let recorded = self.lock().log.record(OutputLog::record_close);
        assert!(
            recorded.is_some(),
            "process closed before, or has not exited"
        );
    }

    pub(in crate::process) fn fail(&self, error: ProcessError) {
        let mut state = self.lock();
        state.failure = Some(error);
        state.log.record(|_| ());
    }

    pub(in crate::process) fn script_writes(&self, answers: &[Result<WriteStatus, ProcessError>]) {
        self.lock().answers.extend(answers.iter().cloned());
    }

    pub(in crate::process) fn input(&self) -> (Vec<u8>, bool) {
        let state = self.lock();
        (state.input.clone(), state.stdin_closed)
    }

    pub(in crate::process) fn write_endlessly(&self) {
        self.lock().endless = true;
    }

    pub(in crate::process) fn terminate_mode(&self) -> Option<TerminateMode> {
        self.lock().terminated
    }

    fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap()
    }

    fn answer(&self, accept: impl FnOnce(&mut FakeState)) -> Result<WriteStatus, ProcessError> {
        let mut state = self.lock();
        let answer = state.answers.pop_front();
        let answer = answer.unwrap_or(Ok(WriteStatus::Accepted));
        if answer == Ok(WriteStatus::Accepted) {
            accept(&mut state);
        }
        answer
    }
}

/// Follows until dropped.
struct FakeFollower(Arc<Mutex<FakeState>>, FollowerId);

impl Drop for FakeFollower {
    fn drop(&mut self) {
        self.0.lock().unwrap().log.unfollow(self.1);
    }
}

impl ExecProcess for FakeProcess {
    fn id(&self) -> &ProcessId {
        &self.id
    }

    fn status(&self) -> ProcessStatus {
        let state = self.lock();
        let log = state.log.log();
        ProcessStatus {
            exit: log.exit().cloned(),
            closed: log.is_closed(),
            tree_alive: false,
            next_seq: log.next_seq(),
            retained_bytes: log.retained_bytes(),
            os_pid: None,
            started_at_ms: 0,
        }
    }

    fn follow(&self, follow: FollowOptions) -> EventStream {
        let id = self.lock().log.follow(follow);
        let follower = FakeFollower(Arc::clone(&self.state), id);
        let mut failed = false;
        stream::poll_fn(move |cx| {
            let FakeFollower(shared, id) = &follower;
            let mut state = shared.lock().unwrap();
            if state.endless {
                let data = Bytes::from_static(b"more");
                state
                    .log
                    .record(|log| log.append(OutputStream::Stdout, data));
            }
            match state.log.poll_event(*id, cx) {
                Poll::Ready(followed) => Poll::Ready(followed.event.map(ExecProcessEvent::from)),
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
        .boxed()
    }

    fn hold(&self, _: OutputSeq) -> Box<dyn OutputHold> {
        unreachable!("the tests do not hold output")
    }

    fn read(&self, read: OutputReadRequest) -> BoxFuture<'_, Result<LogPage, ProcessError>> {
        let page = self.lock().log.log().page(read.after, read.max_bytes);
        ready(Ok(page)).boxed()
    }

    fn write(
        &self,
        _: Option<WriteId>,
        data: Bytes,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        ready(self.answer(|state| state.input.extend_from_slice(&data))).boxed()
    }

    fn close_stdin(
        &self,
        _: Option<WriteId>,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        ready(self.answer(|state| state.stdin_closed = true)).boxed()
    }

    fn resize(&self, _: TerminalSize) -> BoxFuture<'static, Result<(), ProcessError>> {
        ready(Ok(())).boxed()
    }

    fn signal(&self, _: ProcessSignal) -> BoxFuture<'static, Result<(), ProcessError>> {
        ready(Ok(())).boxed()
    }

    fn terminate(&self, mode: TerminateMode) -> BoxFuture<'static, Result<bool, ProcessError>> {
        self.lock().terminated = Some(mode);
        ready(Ok(true)).boxed()
    }

    fn wait(
        &self,
        _: WaitUntil,
        _: Option<Duration>,
    ) -> BoxFuture<'static, Result<ProcessStatus, ProcessError>> {
        ready(Ok(self.status())).boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<OutputSnapshot, ProcessError>> {
        ready(Ok(self.lock().log.log().snapshot())).boxed()
    }
}
