//! Handlers: each turns one request into one call of the environment.

mod files;
mod http_streams;
mod process;
mod start;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_transport::link::{Binary, Principal};
use exec_wire::{
    environment::EnvironmentStatus,
    error::RpcError,
    id::{ProcessId, SessionId},
    initialize::{Extension, InitializeParams, InitializeResponse},
    message::RequestId,
    outgoing::Outgoing,
    process::{Acknowledged, Empty},
};
use futures_util::future::{BoxFuture, FutureExt};
use serde::Serialize;
use tracing::Span;

use self::http_streams::ConnectionStreams;
use crate::{
    connection_files::ConnectionFiles,
    meters::Outcome,
    method_call::Call,
    request_guard::shown,
    send_queue::Outbox,
    service::Shared,
    session::{Found, Keeping, Process, Session},
};

/// A request that has begun.
pub(crate) enum Begun {
    /// It is done.
    Done(Answer),
    /// It runs, and others that it could disturb wait for it. It may answer by itself.
    Runs(BoxFuture<'static, Reply>),
    /// It has taken effect, or only reads, and waits: nobody waits for it.
    Waits(BoxFuture<'static, Answer>),
    /// It waits as well, and answers by itself: something follows its answer.
    Answers(BoxFuture<'static, Outcome>),
}

/// The handlers of one connection.
pub(crate) struct Handler {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    files: Arc<ConnectionFiles>,
    streams: Arc<ConnectionStreams>,
    binary: Binary,
    takes_binary: bool,
    session: Option<Arc<Session>>,
    /// Who connected, if that has a name.
    principal: Option<Principal>,
    /// The span of the connection.
    connection: Span,
}

impl Handler {
    pub(crate) fn new(
        shared: Arc<Shared>,
        outbox: Arc<Outbox>,
        binary: Binary,
        principal: Option<Principal>,
    ) -> Self {
        Self {
            shared,
            outbox,
            files: Arc::default(),
            streams: Arc::default(),
            binary,
            takes_binary: false,
            session: None,
            principal,
            connection: Span::current(),
        }
    }

    /// Returns the session, once there is one.
    pub(crate) fn session_id(&self) -> Option<&SessionId> {
        self.session.as_ref().map(|session| &session.id)
    }

    pub(crate) fn takes_binary(&self) -> bool {
        self.takes_binary
    }

    pub(crate) fn into_session(self) -> Option<Arc<Session>> {
        self.session
    }

    /// Opens or resumes the connection's session.
    pub(crate) async fn initialize(
        &mut self,
        params: InitializeParams,
    ) -> Result<InitializeResponse, RpcError> {
        let wanted = params.extensions.unwrap_or_default();
        let granted: Vec<Extension> = Extension::ALL
            .iter()
            .copied()
            .filter(|extension| {
                wanted
                    .iter()
                    .any(|name| Extension::parse(name) == Some(*extension))
                    && (*extension != Extension::BinaryData || self.binary == Binary::Possible)
            })
            .collect();
        let environment = self.shared.open();
        let info = environment.backend.info().await?;
        let sessions = &self.shared.sessions;
        let keeping = if granted.contains(&Extension::Acknowledge) {
            Keeping::Unacknowledged
        } else {
            Keeping::Retained
        };
        let session = match &params.resume_session_id {
            Some(id) => sessions.resume(id, &self.outbox, keeping)?,
            None => {
                let principal = self.principal.clone();
                sessions.open(environment, principal, Arc::clone(&self.outbox), keeping)?
            }
        };
        for extension in &granted {
            self.outbox.grant(*extension);
            self.takes_binary |= *extension == Extension::BinaryData;
        }
        let (span, client) = (Span::current(), shown(&params.client_name));
        span.record("session", session.id.shown());
        self.connection.record("session", session.id.shown());
        self.connection.record("client", client);
        let how = if params.resume_session_id.is_some() {
            self.shared.meters.sessions_resumed.increment();
            "session resumed"
        } else {
            self.shared.meters.sessions_opened.increment();
            "session begun"
        };
        tracing::info!(target: "exec_service::session", client, session = session.id.shown(), "{how}");
        let session_id = session.id.clone();
        self.session = Some(session);
        Ok(InitializeResponse {
            session_id,
            environment_info: Some(info),
            extensions: granted,
            server: Some(self.shared.config.server.clone()),
            session_ttl_ms: Some(millis(self.shared.config.session_ttl)),
        })
    }

    /// Lets go of what the client has taken of a process's events.
    pub(crate) fn acknowledge(&self, acknowledged: &Acknowledged) {
        if let Some(session) = &self.session {
            session.acknowledge(acknowledged);
        }
    }

    /// Takes hold of the open file that a block is of, unless that was done before.
    pub(crate) fn take_hold(&self, call: &mut Call) {
        let (id, file) = if let Call::ReadBlock(params, file) = call {
            (&params.handle_id, file)
        } else if let Call::WriteBlock(params, _, file) = call {
            (&params.handle_id, file)
        } else {
            return;
        };
        if file.is_none() {
            *file = self.files.handle(id);
        }
    }

    /// Begins a request. What it changes at once, it has changed when this returns.
    pub(crate) fn begin(&self, id: RequestId, call: Call) -> Begun {
        let Some(session) = self.session.clone() else {
            let error = RpcError::invalid_request("connection has no session");
            return Begun::Done(Answer::error(&id, &error));
        };
        let handlers = Handlers {
            shared: &self.shared,
            outbox: &self.outbox,
            files: &self.files,
            streams: &self.streams,
            session,
        };
        match call {
            Call::Initialize(_) => done(
                &id,
                Err::<Empty, _>(RpcError::invalid_request(
                    "initialize may only be sent once per connection",
                )),
            ),
            Call::EnvironmentInfo => {
                let backend = Arc::clone(&handlers.session.environment.backend);
                Begun::Waits(async move { Answer::new(&id, &backend.info().await) }.boxed())
            }
            Call::EnvironmentStatus => done(
                &id,
                Ok(EnvironmentStatus {
                    status: "ready".to_owned(),
                }),
            ),
            Call::ReadConfig(params) => handlers.look_up(id, |catalog| catalog.read_config(params)),
            Call::DiscoverRoots(params) => {
                handlers.look_up(id, |catalog| catalog.discover_roots(params))
            }
            Call::Discover(params) => handlers.look_up(id, |catalog| catalog.discover(params)),
            Call::Http(request, body) => handlers.http_request(id, *request, body),
            Call::CancelHttp(params) => handlers.cancel_http(&id, &params),
            Call::Start(params) => handlers.start(id, *params),
            Call::Read(params) => handlers.read(id, &params),
            Call::Write(params, data) => handlers.write(id, params, data),
            Call::CloseStdin(params) => handlers.close_stdin(id, params),
            Call::Resize(params) => handlers.resize(id, &params),
            Call::Signal(params) => handlers.signal(id, &params),
            Call::Terminate(params) => handlers.terminate(id, &params),
            Call::Wait(params) => handlers.wait(id, &params),
            Call::Snapshot(params) => handlers.snapshot(id, &params.process_id),
            Call::Attach(params) => done(&id, handlers.attach(&params)),
            Call::Release(params) => done(&id, handlers.release(&params)),
            Call::List(params) => done(&id, Ok(handlers.list(params))),
            Call::ReadFile(params) => handlers.read_file(id, params),
            Call::WriteFile(params, data) => handlers.write_file(id, params, data),
            Call::CreateDirectory(params) => {
                files::nothing(id, handlers.file_system().create_directory(params))
            }
            Call::GetMetadata(params) => {
                files::result(id, handlers.file_system().metadata(params), |found| found)
            }
            Call::Canonicalize(params) => handlers.canonicalize(id, params),
            Call::ReadDirectory(params) => handlers.read_directory(id, params),
            Call::Walk(params) => handlers.make_list(id, |files| files.walk(params)),
            Call::Remove(params) => files::nothing(id, handlers.file_system().remove(params)),
            Call::Copy(params) => files::nothing(id, handlers.file_system().copy(params)),
            Call::Rename(params) => files::nothing(id, handlers.file_system().rename(params)),
            Call::OpenFile(params) => handlers.open_file(id, params),
            Call::ReadBlock(params, file) => handlers.read_block(id, params, file),
            Call::WriteBlock(params, data, file) => handlers.write_block(id, params, data, file),
            Call::CloseFile(params) => handlers.close_file(&id, &params),
            Call::WatchMissing(params) => handlers.watch_missing(id, params),
            Call::Watch(params) => handlers.watch(id, params),
            Call::Unwatch(params) => handlers.unwatch(&id, &params),
            Call::Search(params) => handlers.make_list(id, |files| files.search(params)),
            Call::Find(params) => handlers.make_list(id, |files| files.find(params)),
            Call::Exec(params) => handlers.exec(id, *params),
            Call::ExecWrite(params) => handlers.exec_write(id, params),
            Call::ExecTerminate(params) => handlers.exec_terminate(id, &params.process_id),
        }
    }
}

pub(crate) use self::files::{Data, Handle};

/// What every handler needs.
struct Handlers<'a> {
    shared: &'a Arc<Shared>,
    outbox: &'a Arc<Outbox>,
    files: &'a Arc<ConnectionFiles>,
    streams: &'a Arc<ConnectionStreams>,
    session: Arc<Session>,
}

impl Handlers<'_> {
    /// Looks among the session's processes, then among the server's.
    fn find(&self, id: &ProcessId) -> Found {
        match self.session.find(id) {
            Found::Unknown => self.shared.detached.find(id),
            found @ (Found::Starting(_) | Found::Started(_)) => found,
        }
    }

    /// Finds a process that must be there.
    fn known(&self, id: &ProcessId) -> Result<Arc<Process>, RpcError> {
        match self.find(id) {
            Found::Started(process) => Ok(process),
            Found::Starting(_) => Err(RpcError::invalid_request(format!(
                "process {id} is still starting"
            ))),
            Found::Unknown => Err(RpcError::invalid_request(format!(
                "unknown process id {id}"
            ))),
        }
    }
}

/// Returns a span of time as the wire has it.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn done<T: Serialize>(id: &RequestId, result: Result<T, RpcError>) -> Begun {
    Begun::Done(Answer::new(id, &result))
}

/// Answers at once if the future is ready, which it nearly always is; otherwise waits.
fn settle<T, E, R>(
    id: RequestId,
    future: BoxFuture<'static, Result<T, E>>,
    result: impl FnOnce(Result<T, E>) -> Result<R, RpcError> + Send + 'static,
) -> Begun
where
    T: 'static,
    E: 'static,
    R: Serialize,
{
    let mut future = future;
    match (&mut future).now_or_never() {
        Some(outcome) => done(&id, result(outcome)),
        None => Begun::Waits(async move { Answer::new(&id, &result(future.await)) }.boxed()),
    }
}

/// An answer on its way out.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) message: Outgoing,
    pub(crate) outcome: Outcome,
}

impl Answer {
    pub(crate) fn new<T: Serialize>(id: &RequestId, result: &Result<T, RpcError>) -> Self {
        match result {
            Ok(result) => Self {
                message: Outgoing::result(id, result),
                outcome: Outcome::Ok,
            },
            Err(error) => Self::error(id, error),
        }
    }

    /// Answers with a result that has a data member.
    pub(crate) fn with_data<T: Serialize>(
        id: &RequestId,
        result: &T,
        member: &'static str,
        data: Bytes,
    ) -> Self {
        Self {
            message: Outgoing::result_with_data(id, result, member, data),
            outcome: Outcome::Ok,
        }
    }

    pub(crate) fn error(id: &RequestId, error: &RpcError) -> Self {
        Self {
            message: Outgoing::error(id, error),
            outcome: Outcome::of(error),
        }
    }
}

/// What a request comes to.
#[derive(Debug)]
pub(crate) enum Reply {
    /// An answer to be sent.
    Send(Answer),
    /// The answer is sent already.
    Sent(Outcome),
}

impl Reply {
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Send(answer) => answer.outcome,
            Self::Sent(outcome) => *outcome,
        }
    }
}
