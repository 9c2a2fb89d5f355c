//! The handshake: `initialize`, its response, `initialized`.

use bytes::Bytes;
use exec_core::peer::PendingCalls;
use exec_transport::{
    connect,
    link::{DataEncoding, Link},
    trace::TraceSource,
};
use exec_wire::{
    id::SessionId,
    initialize::{InitializeParams, InitializeResponse},
    message::{RpcMessage, split_binary},
    method::{INITIALIZED, Method},
    outgoing_message::OutgoingMessage,
    process::EmptyResult,
};
use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

use crate::{
    client::ExecServerClientConnectOptions,
    error::{ConnectError, error_chain},
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
    let began = link.handshake_started_at.unwrap_or_else(Instant::now);
    let initialized = initialize(&mut link, params, options.trace.as_ref());
    let (session, early_messages) = timeout_at(began + limit, initialized)
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
        let given = &session.session_id;
        if let Some(asked) = params.resume_session_id.filter(|asked| asked != given) {
            let given = given.clone();
            return Err(ConnectError::WrongSession { asked, given });
        }
        let notification = OutgoingMessage::notification(INITIALIZED, &EmptyResult {});
        link.writer.push(notification, DataEncoding::Text);
        link.writer.flush().await.map_err(|error| broken(&error))?;
        return Ok((session, early_messages));
    }
}
