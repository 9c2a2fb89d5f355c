//! Handlers of `process/*` except start, and of the older `command/exec*`.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use exec_core::output_log::{FollowStart, LogPage};
use exec_env::{
    environment::{Command, ProcessIo, StdinMode},
    process::{ExecProcess, OutputReadRequest, ProcessError, ProcessStatus},
};
use exec_wire::{
    base64_bytes::Base64Bytes,
    error::{ErrorCode, RpcError},
    id::{OutputSeq, ProcessId},
    limits,
    message::RequestId,
    path_uri::PathUri,
    process::{
        AttachProcess, AttachResult, CloseStdin, CommandStarted, CommandWritten, EmptyResult,
        ExecCommand, ListProcesses, OutputPage, PageChunk, ProcessList, ProcessSnapshot,
        ReadProcess, ReleaseProcess, ResizeProcess, SignalProcess, TerminalSize, TerminateMode,
        TerminateResult, WaitProcess, WaitResult, WaitUntil, WriteCommand, WriteProcess,
        WriteResult, WriteStatus,
    },
};
use futures_util::future::{BoxFuture, FutureExt};
use serde::Serialize;

use super::{Dispatch, HandlerContext, respond_now, respond_when_ready, start::StartPlan};
use crate::{
    connection::MethodFamily,
    request_guard::truncate_for_log,
    session::{ProcessLookup, SessionProcess, follow},
};

impl HandlerContext<'_> {
    pub(super) fn read(&self, id: RequestId, params: &ReadProcess) -> Result<Dispatch, RpcError> {
        let process = self.require_process(&params.process_id)?;
        let read = OutputReadRequest {
            after: params.after_seq.unwrap_or_default(),
            max_bytes: params.max_bytes,
            wait: Duration::from_millis(params.wait_ms.unwrap_or(0)),
        };
        let times = params.times;
        let page = async move {
            let mut page = page(process.handle.read(read).await?);
            if times {
                add_times(&mut page, &*process.handle, read.after);
            }
            Ok(page)
        };
        Ok(process_result(id, page.boxed(), |page| page))
    }

    pub(super) fn wait(&self, id: RequestId, params: &WaitProcess) -> Result<Dispatch, RpcError> {
        let process = self.require_process(&params.process_id)?;
        let until = params.until;
        let limit = params.timeout_ms.map(Duration::from_millis);
        let wait = process.handle.wait(until, limit);
        Ok(process_result(id, wait, move |status| {
            wait_result(status, until)
        }))
    }

    pub(super) fn snapshot(
        &self,
        id: RequestId,
        process_id: &ProcessId,
    ) -> Result<Dispatch, RpcError> {
        let process = self.require_process(process_id)?;
        let snapshot = async move {
            let snapshot = process.handle.snapshot().await?;
            let exit = process.handle.status().exit;
            let streams = [snapshot.stdout, snapshot.stderr, snapshot.terminal];
            let omitted_bytes = streams.iter().map(|stream| stream.omitted).sum();
            let [stdout, stderr, terminal] = streams.map(|stream| Base64Bytes(stream.data.into()));
            Ok(ProcessSnapshot {
                stdout,
                stderr,
                terminal,
                truncated: omitted_bytes > 0,
                omitted_bytes,
                running: exit.is_none(),
                exit_code: exit.map(|exit| exit.code),
            })
        };
        Ok(process_result(id, snapshot.boxed(), |snapshot| snapshot))
    }

    pub(super) fn attach_to_known(&self, params: &AttachProcess) -> Result<AttachResult, RpcError> {
        let id = &params.process_id;
        let process = match (self.find(id), params.started_at_ms) {
            // Attaching to another session's process requires its start time.
            (ProcessLookup::Unknown, Some(_)) => self.take_over(params)?,
            _ => self.require_process(id)?,
        };
        if !process.is_detached() {
            let message = format!("process {id} belongs to this session and is already attached");
            return Err(RpcError::invalid_request(message));
        }
        let status = process.handle.status();
        if !has_expected_start(&status, params) {
            return Err(different_process(id));
        }
        follow(
            self.send_queue,
            &process,
            FollowStart::After(params.after_seq.unwrap_or(OutputSeq(0))),
        );
        Ok(AttachResult {
            next_seq: status.next_seq,
            running: status.exit.is_none(),
        })
    }

    /// Moves a process of another session to the server, so that it outlives that session.
    fn take_over(&self, params: &AttachProcess) -> Result<Arc<SessionProcess>, RpcError> {
        let id = &params.process_id;
        let others = self.shared.sessions.others(&self.session).into_iter();
        let candidates = others.filter_map(|session| match session.find(id) {
            ProcessLookup::Started(process) => Some((session, process)),
            ProcessLookup::Unknown | ProcessLookup::Starting(_) => None,
        });
        let candidates: Vec<_> = candidates.collect();
        let matches = |(_, process): &&(_, Arc<SessionProcess>)| {
            has_expected_start(&process.handle.status(), params)
        };
        let mut matching = candidates.iter().filter(matches);
        let Some((session, process)) = matching.next() else {
            return Err(match candidates.is_empty() {
                true => RpcError::invalid_request(format!("unknown process id {id}")),
                false => different_process(id),
            });
        };
        if matching.next().is_some() {
            let message = format!("several sessions have a process {id} with this start time");
            return Err(RpcError::invalid_request(message));
        }
        let outcome = self.shared.detached.take_over(session, process);
        outcome.map_err(|error| RpcError::invalid_request(error.to_string()))?;
        tracing::info!(
            target: "exec_service::process", process_id = truncate_for_log(id.as_str()),
            from = session.id.redacted(), by = self.session.id.redacted(),
            "process taken over by the server"
        );
        Ok(Arc::clone(process))
    }

    pub(super) fn release(
        &self,
        id: RequestId,
        params: &ReleaseProcess,
    ) -> Result<Dispatch, RpcError> {
        let name = &params.process_id;
        let process = self.require_process(name)?;
        if !process.is_detached() {
            let message = format!("process {name} belongs to this session and cannot be released");
            return Err(RpcError::invalid_request(message));
        }
        if params.forget && !self.shared.detached.evict(&process) {
            let message = format!("process {name} has not finished and cannot be forgotten");
            return Err(RpcError::invalid_request(message));
        }
        self.send_queue.unfollow(name);
        Ok(match params.forget {
            true => self.purge_record(id, &process),
            false => respond_now(&id, Ok(EmptyResult {})),
        })
    }

    pub(super) fn list(&self, params: ListProcesses) -> ProcessList {
        let mut processes = self.session.list();
        processes.extend(self.shared.detached.list());
        if params.all {
            let others = self.shared.sessions.others(&self.session).into_iter();
            let listed = others.flat_map(|session| session.list());
            processes.extend(listed.take(limits::MAX_LISTED_PROCESSES));
        }
        processes.sort_by(|left, right| left.process_id.cmp(&right.process_id));
        ProcessList { processes }
    }
}

/// Returns whether a process has the start time that the client expects.
fn has_expected_start(status: &ProcessStatus, params: &AttachProcess) -> bool {
    let started = params.started_at_ms;
    started.is_none_or(|started| started == status.started_at_ms)
}

/// The id now names a different process.
fn different_process(id: &ProcessId) -> RpcError {
    let message = format!("process {id} has a different start time than the client expects");
    RpcError::new(ErrorCode::NOT_FOUND, message)
}

fn page(page: LogPage) -> OutputPage {
    let chunks = page.chunks.into_iter().map(|chunk| PageChunk {
        seq: chunk.seq,
        stream: chunk.stream,
        chunk: Base64Bytes(chunk.data),
        at_ms: None,
    });
    OutputPage {
        chunks: chunks.collect(),
        next_seq: page.next_seq,
        exited: page.exit.is_some(),
        exit_code: page.exit.as_ref().map(|exit| exit.code),
        closed: page.closed,
        failure: None,
        sandbox_denied: page.exit.as_ref().is_some_and(|exit| exit.sandbox_denied),
        exit_seq: page.exit_seq,
        signal: page
            .exit
            .as_ref()
            .and_then(|exit| exit.signal)
            .map(str::to_owned),
        cause: page.exit.as_ref().map(|exit| exit.cause),
        usage: page.exit.and_then(|exit| exit.usage),
    }
}

/// Adds the recorded times of its chunks to a page.
fn add_times(page: &mut OutputPage, process: &dyn ExecProcess, after: OutputSeq) {
    let bytes: usize = page.chunks.iter().map(|chunk| chunk.chunk.0.len()).sum();
    let times: BTreeMap<_, _> = process.read_times(after, bytes).into_iter().collect();
    for chunk in &mut page.chunks {
        chunk.at_ms = times.get(&chunk.seq).copied();
    }
}

fn wait_result(status: ProcessStatus, until: WaitUntil) -> WaitResult {
    let reached = match until {
        WaitUntil::Exited => status.exit.is_some(),
        WaitUntil::Closed => status.closed,
    };
    WaitResult {
        exited: status.exit.is_some(),
        exit_code: status.exit.as_ref().map(|exit| exit.code),
        signal: status.exit.and_then(|exit| exit.signal).map(str::to_owned),
        closed: status.closed,
        timed_out: !reached,
    }
}

impl HandlerContext<'_> {
    pub(super) fn write(&self, id: RequestId, params: WriteProcess) -> Dispatch {
        let process = match self.find(&params.process_id) {
            ProcessLookup::Unknown => return respond_with_status(&id, WriteStatus::UnknownProcess),
            ProcessLookup::Starting(_) => return respond_with_status(&id, WriteStatus::Starting),
            ProcessLookup::Started(process) => process,
        };
        // Decoding has checked that there is data.
        let data = params.chunk.unwrap_or_default().0;
        let (metrics, bytes) = (Arc::clone(&self.shared.metrics), data.len());
        let writing = process.handle.write(Some(params.write_id), data);
        process_result(id, writing, move |status| {
            if status == WriteStatus::Accepted {
                metrics.input_bytes.add_bytes(bytes);
            }
            WriteResult { status }
        })
    }

    pub(super) fn close_stdin(&self, id: RequestId, params: CloseStdin) -> Dispatch {
        let process = match self.find(&params.process_id) {
            ProcessLookup::Unknown => return respond_with_status(&id, WriteStatus::UnknownProcess),
            ProcessLookup::Starting(_) => return respond_with_status(&id, WriteStatus::Starting),
            ProcessLookup::Started(process) => process,
        };
        let closing = process.handle.close_stdin(params.write_id);
        process_result(id, closing, |status| WriteResult { status })
    }

    pub(super) fn resize(
        &self,
        id: RequestId,
        params: &ResizeProcess,
    ) -> Result<Dispatch, RpcError> {
        let process = self.require_process(&params.process_id)?;
        let size = TerminalSize {
            rows: params.rows,
            cols: params.cols,
        };
        let resized = process.handle.resize(size);
        Ok(process_result(id, resized, |()| EmptyResult {}))
    }

    pub(super) fn signal(&self, id: RequestId, params: &SignalProcess) -> Dispatch {
        match self.find(&params.process_id) {
            ProcessLookup::Started(process) => process_result(
                id,
                process.handle.signal(params.signal),
                |()| EmptyResult {},
            ),
            ProcessLookup::Unknown | ProcessLookup::Starting(_) => {
                respond_now(&id, Ok(EmptyResult {}))
            }
        }
    }

    pub(super) fn terminate(
        &self,
        id: RequestId,
        process_id: &ProcessId,
        mode: Option<TerminateMode>,
    ) -> Dispatch {
        match self.find(process_id) {
            ProcessLookup::Unknown => respond_now(&id, Ok(TerminateResult { running: false })),
            ProcessLookup::Starting(cancel) => {
                cancel.notify_one();
                respond_now(&id, Ok(TerminateResult { running: true }))
            }
            // As in the stock server, descendants of an exited command keep running. An explicit
            // mode terminates the whole tree.
            ProcessLookup::Started(process)
                if mode.is_none() && process.handle.status().exit.is_some() =>
            {
                respond_now(&id, Ok(TerminateResult { running: false }))
            }
            ProcessLookup::Started(process) => {
                let terminated = process.handle.terminate(mode.unwrap_or_default());
                process_result(id, terminated, |running| TerminateResult { running })
            }
        }
    }
}

fn respond_with_status(id: &RequestId, status: WriteStatus) -> Dispatch {
    respond_now(id, Ok(WriteResult { status }))
}

/// Responds with the result of a call of a process, when it is ready.
fn process_result<T: 'static, R: Serialize>(
    id: RequestId,
    call: BoxFuture<'static, Result<T, ProcessError>>,
    result: impl FnOnce(T) -> R + Send + 'static,
) -> Dispatch {
    respond_when_ready(id, call, |outcome| {
        outcome.map(result).map_err(process_error)
    })
}

/// Maps a process error to its JSON-RPC error.
fn process_error(error: ProcessError) -> RpcError {
    match error {
        ProcessError::Remote(error) => error,
        ProcessError::NoTerminal(_) => RpcError::invalid_request(error.to_string()),
        ProcessError::EmptySize => RpcError::invalid_params(error.to_string()),
        ProcessError::Terminated
        | ProcessError::StdinFull
        | ProcessError::StorageFull
        | ProcessError::Disconnected(_) => RpcError::internal(error.to_string()),
        other => RpcError::internal(other.to_string()),
    }
}

impl HandlerContext<'_> {
    pub(super) fn exec(&self, id: RequestId, params: ExecCommand) -> Result<Dispatch, RpcError> {
        let cwd = PathUri::from_native(Path::new(&params.cwd))
            .map_err(|error| RpcError::invalid_params(format!("cwd: {error}")))?;
        if !self.shared.config.allow_direct_exec {
            let text = "direct exec is disabled on this server";
            return Err(RpcError::invalid_request(text));
        }
        let io = if params.tty {
            ProcessIo::Terminal(TerminalSize::default())
        } else {
            ProcessIo::Pipes {
                stdin: StdinMode::Null,
            }
        };
        let command = Command {
            arg0: params.arg0,
            env: params.env,
            io,
            // The cap for both streams together also bounds each stream.
            retained_bytes: params.output_bytes_cap,
            ..Command::new(params.process_id, params.argv, cwd)
        };
        let plan = StartPlan {
            command,
            family: MethodFamily::Command,
            detached: false,
            watcher: None,
        };
        self.launch(id, plan, |process_id, _| CommandStarted {
            process_id,
            running: true,
            exit_code: None,
            stdout: None,
            stderr: None,
        })
    }

    pub(super) fn exec_write(
        &self,
        id: RequestId,
        params: WriteCommand,
    ) -> Result<Dispatch, RpcError> {
        let process = self.require_process(&params.process_id)?;
        let process_id = params.process_id;
        let (metrics, bytes) = (Arc::clone(&self.shared.metrics), params.chunk.0.len());
        let writing = process.handle.write(None, params.chunk.0);
        Ok(respond_when_ready(
            id,
            writing,
            move |outcome| match outcome.map_err(process_error)? {
                WriteStatus::Accepted => {
                    metrics.input_bytes.add_bytes(bytes);
                    Ok(CommandWritten { accepted: true })
                }
                WriteStatus::UnknownProcess | WriteStatus::StdinClosed | WriteStatus::Starting => {
                    let message = format!("process {process_id} has no writable stdin");
                    Err(RpcError::invalid_request(message))
                }
            },
        ))
    }
}
