//! The handshake: `initialize`, its response, `initialized`; and what the server then understands.
//!
//! The client rejects a request with a member that the server would ignore, so that no request is
//! silently done differently. Not here: unknown methods, which servers reject themselves.

use bytes::Bytes;
use exec_core::peer::PendingCalls;
use exec_env::{
    environment::{Command, ProcessIo, StartError},
    filesystem::{FileError, OpenFileRequest},
};
use exec_transport::{
    connect,
    link::{DataEncoding, Link},
    trace::TraceSource,
};
use exec_wire::{
    environment::ServerCapabilities,
    error::{ErrorCode, RpcError, error_chain},
    fs::{OpenMode, WriteFile},
    id::SessionId,
    initialize::{InitializeParams, InitializeResponse},
    message::{RpcMessage, split_binary},
    method::{Method, MethodName, notification},
    outgoing_message::OutgoingMessage,
    process::{EmptyResult, ProcessLimits, TerminalSize, TerminateMode},
};
use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

use crate::{
    backend::ProcessDurability, client::ExecServerClientConnectOptions, error::ConnectError,
};

/// Maximum size of messages before the response to `initialize`, such as events of a resumed
/// session.
const MAX_EARLY_BYTES: usize = 64 << 20;

/// A link with a session on it.
#[derive(Debug)]
pub(crate) struct OpenedSession {
    pub(crate) link: Link,
    pub(crate) session: InitializeResponse,
    /// Messages before the response, in order: events of a resumed session, and server requests.
    pub(crate) early_messages: Vec<Bytes>,
}

/// Opens or resumes a session on the link of a connector.
pub(crate) async fn open_session(
    link: BoxFuture<'_, Result<Link, connect::ConnectError>>,
    options: &ExecServerClientConnectOptions,
    resumed: Option<SessionId>,
) -> Result<OpenedSession, ConnectError> {
    perform_handshake(link.await?, options, resumed).await
}

/// Opens or resumes a session on a link.
pub(crate) async fn perform_handshake(
    mut link: Link,
    options: &ExecServerClientConnectOptions,
    resumed: Option<SessionId>,
) -> Result<OpenedSession, ConnectError> {
    let params = InitializeParams {
        client_name: options.client_name.clone(),
        resume_session_id: resumed,
        extensions: Some(options.extensions.clone()),
    };
    let limit = options.initialize_timeout;
    let started_at = link.handshake_started_at.unwrap_or_else(Instant::now);
    let initialized = initialize(&mut link, params, options.trace.as_ref());
    let (session, early_messages) = timeout_at(started_at + limit, initialized)
        .await
        .map_err(|_| ConnectError::Timeout(limit))??;
    Ok(OpenedSession {
        link,
        session,
        early_messages,
    })
}

async fn initialize(
    link: &mut Link,
    params: InitializeParams,
    trace: Option<&TraceSource>,
) -> Result<(InitializeResponse, Vec<Bytes>), ConnectError> {
    let broken = |error: &dyn std::error::Error| ConnectError::Broken(error_chain(error));
    let malformed = |error: &dyn std::error::Error| ConnectError::Malformed(error_chain(error));
    let mut calls = PendingCalls::new(1);
    let id = calls.register(()).map_err(|error| malformed(&error))?;
    let method = InitializeParams::NAME.as_str();
    let request = OutgoingMessage::request(&id, method, &params);
    let request = match trace.and_then(TraceSource::current) {
        None => request,
        Some(trace) => request.with_trace(&trace),
    };
    link.writer.push(request, DataEncoding::Text);
    link.writer.flush().await.map_err(|error| broken(&error))?;
    let mut early_messages = Vec::new();
    let mut early_bytes = 0;
    loop {
        let frame = link.reader.next().await.map_err(|error| broken(&error))?;
        let frame =
            frame.ok_or_else(|| ConnectError::Broken("server closed the connection".to_owned()))?;
        let answer = match split_binary(&frame) {
            Some(_) => None,
            None => {
                let message = RpcMessage::decode(&frame).map_err(|error| malformed(&error))?;
                calls.handle_response(message)
            }
        };
        let Some(answer) = answer else {
            early_bytes += frame.len();
            if early_bytes > MAX_EARLY_BYTES {
                let text = format!("more than {MAX_EARLY_BYTES} bytes arrived before the response");
                return Err(ConnectError::Malformed(text));
            }
            early_messages.push(frame);
            continue;
        };
        let result = answer.result.map_err(ConnectError::Refused)?;
        let session: InitializeResponse =
            serde_json::from_str(result.get()).map_err(|error| malformed(&error))?;
        let resumed = &session.session_id;
        if let Some(requested) = params
            .resume_session_id
            .filter(|requested| requested != resumed)
        {
            let resumed = resumed.clone();
            return Err(ConnectError::WrongSession { requested, resumed });
        }
        let notification =
            OutgoingMessage::notification(notification::INITIALIZED, &EmptyResult {});
        link.writer.push(notification, DataEncoding::Text);
        link.writer.flush().await.map_err(|error| broken(&error))?;
        return Ok((session, early_messages));
    }
}

/// The only terminal size of a stock server.
const STOCK_TERMINAL_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// Kinds of servers by the request members that they understand.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ServerKind {
    /// Supports our extensions.
    Extended,
    /// A stock server, which sends no server information and supports no extensions.
    Stock,
}

impl ServerKind {
    /// Determines the kind from the response to `initialize`.
    pub(crate) fn of(session: &InitializeResponse) -> Self {
        if session.server.is_none() && session.extensions.is_empty() {
            Self::Stock
        } else {
            Self::Extended
        }
    }

    /// Rejects server-owned processes.
    pub(crate) fn check_detached(self) -> Result<(), StartError> {
        match self {
            Self::Extended => Ok(()),
            Self::Stock => refuse("detached", UNSUPPORTED),
        }
    }

    /// Returns the durability to request. Stock servers have ordinary processes only.
    pub(crate) fn resolve_durability(
        self,
        durability: ProcessDurability,
    ) -> Result<Option<bool>, StartError> {
        match (durability, self) {
            (ProcessDurability::ServerDefault, _)
            | (ProcessDurability::NotDurable, Self::Stock) => Ok(None),
            (ProcessDurability::NotDurable, Self::Extended) => Ok(Some(false)),
            (ProcessDurability::Durable, Self::Extended) => Ok(Some(true)),
            (ProcessDurability::Durable, Self::Stock) => {
                refuse("durable", UNSUPPORTED).map(|()| None)
            }
        }
    }

    /// Rejects methods for server-owned processes and process lists.
    pub(crate) fn check_method(self, method: MethodName) -> Result<(), RpcError> {
        match self {
            Self::Extended => Ok(()),
            Self::Stock => {
                let text = format!("`{}`: {UNSUPPORTED}", method.as_str());
                Err(RpcError::new(ErrorCode::METHOD_NOT_FOUND, text))
            }
        }
    }

    /// Rejects limits, and terminal sizes other than the server's.
    pub(crate) fn check_start(self, command: &Command) -> Result<(), StartError> {
        if self == Self::Extended {
            return Ok(());
        }
        if command.limits != ProcessLimits::default() {
            return refuse("limits", UNSUPPORTED);
        }
        match command.io {
            ProcessIo::Terminal(size) if size != STOCK_TERMINAL_SIZE => refuse(
                "size",
                "terminals of this server have 24 rows and 80 columns",
            ),
            ProcessIo::Terminal(_) | ProcessIo::Pipes { .. } => Ok(()),
        }
    }

    /// Rejects `createParents`, `atomic` and `mode`.
    pub(crate) fn check_write(self, write: &WriteFile) -> Result<(), FileError> {
        let member = match write {
            _ if self == Self::Extended => return Ok(()),
            write if write.create_parents => "createParents",
            write if write.atomic => "atomic",
            write if write.mode.is_some() => "mode",
            _ => return Ok(()),
        };
        Err(FileError::Refused(format!("{member}: {UNSUPPORTED}")))
    }

    /// Rejects opening a file for update.
    pub(crate) fn check_open_mode(self, mode: OpenMode) -> Result<(), FileError> {
        match (self, mode) {
            (Self::Extended, _) | (Self::Stock, OpenMode::Read | OpenMode::Replace) => Ok(()),
            (Self::Stock, OpenMode::Update) => {
                Err(FileError::Refused(format!("mode: {UNSUPPORTED}")))
            }
        }
    }

    /// Rejects graceful termination.
    pub(crate) fn check_terminate(self, mode: TerminateMode) -> Result<(), RpcError> {
        match (self, mode) {
            (Self::Extended, _) | (Self::Stock, TerminateMode::Force) => Ok(()),
            (Self::Stock, _) => Err(RpcError::invalid_params(format!("mode: {UNSUPPORTED}"))),
        }
    }
}

const UNSUPPORTED: &str = "not supported by this server";

/// Rejects a proxy configuration that the host does not support. Omits an unsupported shell
/// snapshot, because the command can run without it.
pub(crate) fn check_capabilities(
    command: &mut Command,
    capabilities: &ServerCapabilities,
) -> Result<(), StartError> {
    if !capabilities.shell_snapshot_v2 {
        command.shell_snapshot = None;
    }
    let Some(network) = &command.network.proxy else {
        return Ok(());
    };
    let proxy = &network.proxy;
    if !capabilities.network_proxy_launch {
        refuse("networkProxy", UNSUPPORTED)
    } else if proxy.review_domains.is_some() && !capabilities.network_proxy_review_domains {
        refuse("networkProxy.proxy.reviewDomains", UNSUPPORTED)
    } else if proxy.masking_member().is_some() && !capabilities.credential_masking {
        refuse("networkProxy.proxy.credentialMasking", UNSUPPORTED)
    } else {
        Ok(())
    }
}

/// Returns whether opening a file like this requires a capability of the server.
pub(crate) fn needs_capability(open: &OpenFileRequest) -> bool {
    open.sandbox.is_some() || open.mode != OpenMode::Read
}

/// Rejects sandboxed opens and replacing opens if the server does not support them.
pub(crate) fn check_open(
    open: &OpenFileRequest,
    capabilities: &ServerCapabilities,
) -> Result<(), FileError> {
    let member = if open.sandbox.is_some() && !capabilities.sandboxed_file_streaming {
        "sandbox"
    } else if open.mode != OpenMode::Read && !capabilities.file_write_streaming {
        "mode"
    } else {
        return Ok(());
    };
    let text = format!("{member}: not supported by this server for open files");
    Err(FileError::Refused(text))
}

fn refuse(field: &'static str, reason: &str) -> Result<(), StartError> {
    let reason = reason.to_owned();
    Err(StartError::Refused { field, reason })
}
