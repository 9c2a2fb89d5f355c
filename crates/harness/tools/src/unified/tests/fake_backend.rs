//! A backend with scripted processes.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use exec_core::output_log::{
    ExitInfo, FollowOptions, FollowedLog, FollowerId, LogPage, OutputLog, OutputSnapshot,
    RetentionLimits,
};
use exec_env::{
    environment::{Command, ExecBackend, StartError, StartedProcess},
    process::{
        EventStream, ExecProcess, ExecProcessEvent, OutputHold, OutputReadRequest, ProcessError,
        ProcessStatus,
    },
};
use exec_wire::{
    environment::{EnvironmentInfo, ShellProgram},
    error::RpcError,
    id::{OutputSeq, ProcessId, WriteId},
    path_uri::PathUri,
    process::{
        ExitCause, OutputStream, ProcessSignal, TerminalSize, TerminateMode, WaitUntil, WriteStatus,
    },
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt, pending, ready},
    stream,
};
use tokio::sync::watch;

/// Script of a process at its start.
pub(super) type Script = Box<dyn FnOnce(&FakeProcess) + Send>;

/// Starts scripted processes.
#[derive(Default)]
pub(super) struct FakeBackend {
    scripts: Mutex<VecDeque<Script>>,
    started: watch::Sender<Vec<(Command, FakeProcess)>>,
    requests: AtomicUsize,
    /// Number of starts that succeed; `None` for all.
    remaining_starts: Mutex<Option<usize>>,
}

impl FakeBackend {
    /// Lets this many more starts succeed.
    pub(super) fn fail_starts_after(&self, count: usize) {
        *self.remaining_starts.lock().unwrap() = Some(count);
    }

    /// Sets the script of the next process.
    pub(super) fn next(&self, script: impl FnOnce(&FakeProcess) + Send + 'static) {
        self.scripts.lock().unwrap().push_back(Box::new(script));
    }

    /// Waits for the start of the process with this index.
    pub(super) async fn started(&self, index: usize) -> (Command, FakeProcess) {
        let mut started = self.started.subscribe();
        let started = started.wait_for(|started| started.len() > index);
        started.await.unwrap()[index].clone()
    }

    /// Returns the number of started processes.
    pub(super) fn count(&self) -> usize {
        self.started.borrow().len()
    }

    /// Returns the number of info requests.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

impl std::fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeBackend")
    }
}

impl ExecBackend for FakeBackend {
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        if let Some(remaining_starts) = &mut *self.remaining_starts.lock().unwrap() {
            match remaining_starts.checked_sub(1) {
                Some(count) => *remaining_starts = count,
                None => return ready(Err(StartError::EmptyArgv)).boxed(),
            }
        }
        let fake = FakeProcess::default();
        if let Some(script) = self.scripts.lock().unwrap().pop_front() {
            script(&fake);
        }
        let process = FakeHandle {
            id: command.process_id.clone(),
            fake: fake.clone(),
        };
        self.started
            .send_modify(|started| started.push((command, fake)));
        let started = StartedProcess {
            process: Arc::new(process),
            sandbox_type: None,
        };
        ready(Ok(started)).boxed()
    }

    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let shell = ShellProgram {
            name: "sh".to_owned(),
            path: "/bin/sh".to_owned(),
        };
        let info = EnvironmentInfo {
            shell,
            cwd: Some(PathUri::parse("file:///work").unwrap()),
            executor_version: "0.0.0".to_owned(),
            provider_id: None,
            user_home_dir: None,
            platform_os: None,
            prepend_path_dirs: Vec::new(),
            temporary_directories: None,
            temp_dir: None,
            capabilities: Default::default(),
        };
        ready(Ok(info)).boxed()
    }
}

/// Controls of a process. The process itself is a [`FakeHandle`].
#[derive(Clone, Debug)]
pub(super) struct FakeProcess(Arc<Mutex<FakeState>>);

#[derive(Debug)]
struct FakeState {
    log: FollowedLog,
    failure: Option<ProcessError>,
    answer: Option<WriteStatus>,
    latency: Duration,
    input: Vec<u8>,
    closed: bool,
    signals: Vec<ProcessSignal>,
    ignores_termination: bool,
    dropped: bool,
}

impl Default for FakeProcess {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(FakeState {
            log: FollowedLog::new(OutputLog::new(RetentionLimits::default())),
            failure: None,
            answer: Some(WriteStatus::Accepted),
            latency: Duration::ZERO,
            input: Vec::new(),
            closed: false,
            signals: Vec::new(),
            ignores_termination: false,
            dropped: false,
        })))
    }
}

impl FakeProcess {
    pub(super) fn prints(&self, text: impl AsRef<[u8]>) {
        self.writes(OutputStream::Stdout, text);
    }

    pub(super) fn writes(&self, stream: OutputStream, text: impl AsRef<[u8]>) {
        let data = Bytes::copy_from_slice(text.as_ref());
        self.lock().log.record(|log| log.append(stream, data));
    }

    pub(super) fn exits(&self, code: i32) {
        self.ends(code, ExitCause::Exit, false);
    }

    pub(super) fn is_denied(&self, code: i32) {
        self.ends(code, ExitCause::Exit, true);
        self.closes();
    }

    pub(super) fn closes(&self) {
        self.lock().log.record(OutputLog::record_close);
    }

    pub(super) fn fails(&self, error: ProcessError) {
        let mut state = self.lock();
        state.failure = Some(error);
        state.log.record(|_| ());
    }

    /// Sets the status of writes; `None` never completes them.
    pub(super) fn answers(&self, answer: Option<WriteStatus>) {
        self.lock().answer = answer;
    }

    /// Delays the completion of writes.
    pub(super) fn has_latency(&self, latency: Duration) {
        self.lock().latency = latency;
    }

    /// Ignores termination.
    pub(super) fn ignores_termination(&self) {
        self.lock().ignores_termination = true;
    }

    pub(super) fn input(&self) -> (String, bool) {
        let state = self.lock();
        (
            String::from_utf8(state.input.clone()).unwrap(),
            state.closed,
        )
    }

    pub(super) fn signals(&self) -> Vec<ProcessSignal> {
        self.lock().signals.clone()
    }

    /// Returns whether the process handle was dropped.
    pub(super) fn is_dropped(&self) -> bool {
        self.lock().dropped
    }

    pub(super) fn has_exited(&self) -> bool {
        self.lock().log.log().exit().is_some()
    }

    fn ends(&self, code: i32, cause: ExitCause, sandbox_denied: bool) {
        let exit = ExitInfo {
            code,
            signal: None,
            cause,
            usage: None,
            sandbox_denied,
        };
        self.lock().log.record(|log| log.record_exit(exit));
    }

    fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock().unwrap()
    }
}

/// The process behind the controls.
#[derive(Debug)]
struct FakeHandle {
    id: ProcessId,
    fake: FakeProcess,
}

impl FakeHandle {
    fn answer(
        &self,
        accept: impl FnOnce(&mut FakeState),
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        let mut state = self.fake.lock();
        match state.answer {
            None => pending().boxed(),
            Some(answer) => {
                if answer == WriteStatus::Accepted {
                    accept(&mut state);
                }
                let latency = state.latency;
                async move {
                    if !latency.is_zero() {
                        tokio::time::sleep(latency).await;
                    }
                    Ok(answer)
                }
                .boxed()
            }
        }
    }
}

impl Drop for FakeHandle {
    fn drop(&mut self) {
        self.fake.lock().dropped = true;
        self.fake.ends(137, ExitCause::Terminated, false);
        self.fake.closes();
    }
}

/// Follows until it is dropped.
struct Follower(FakeProcess, FollowerId);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.lock().log.unfollow(self.1);
    }
}

impl ExecProcess for FakeHandle {
    fn id(&self) -> &ProcessId {
        &self.id
    }

    fn status(&self) -> ProcessStatus {
        let state = self.fake.lock();
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
        let id = self.fake.lock().log.follow(follow);
        let follower = Follower(self.fake.clone(), id);
        stream::poll_fn(move |cx| {
            let Follower(fake, id) = &follower;
            let mut state = fake.lock();
            match state.log.poll_event(*id, cx) {
                Poll::Ready(followed) => Poll::Ready(followed.event.map(ExecProcessEvent::from)),
                Poll::Pending => match state.failure.clone() {
                    None => Poll::Pending,
                    Some(error) => Poll::Ready(Some(ExecProcessEvent::Failed(error))),
                },
            }
        })
        .boxed()
    }

    fn hold(&self, _: OutputSeq) -> Box<dyn OutputHold> {
        unreachable!("not used by these tests")
    }

    fn read(&self, _: OutputReadRequest) -> BoxFuture<'_, Result<LogPage, ProcessError>> {
        unreachable!("not used by these tests")
    }

    fn write(
        &self,
        _: Option<WriteId>,
        data: Bytes,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        self.answer(|state| state.input.extend_from_slice(&data))
    }

    fn close_stdin(
        &self,
        _: Option<WriteId>,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        self.answer(|state| state.closed = true)
    }

    fn resize(&self, _: TerminalSize) -> BoxFuture<'static, Result<(), ProcessError>> {
        unreachable!("not used by these tests")
    }

    fn signal(&self, signal: ProcessSignal) -> BoxFuture<'static, Result<(), ProcessError>> {
        self.fake.lock().signals.push(signal);
        ready(Ok(())).boxed()
    }

    fn terminate(&self, _: TerminateMode) -> BoxFuture<'static, Result<bool, ProcessError>> {
        let running = !self.fake.has_exited();
        if !self.fake.lock().ignores_termination {
            self.fake.ends(143, ExitCause::Terminated, false);
            self.fake.closes();
        }
        ready(Ok(running)).boxed()
    }

    fn wait(
        &self,
        _: WaitUntil,
        _: Option<Duration>,
    ) -> BoxFuture<'static, Result<ProcessStatus, ProcessError>> {
        ready(Ok(self.status())).boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<OutputSnapshot, ProcessError>> {
        unreachable!("not used by these tests")
    }
}
