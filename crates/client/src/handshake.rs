//! The handshake: `initialize` and `initialized`, before anything else uses the link.

use std::{io, time::Duration};

use exec_core::peer::Calls;
use exec_transport::link::{Encoding, Link, ReadError};
use exec_wire::{
    error::RpcError,
    id::SessionId,
    initialize::{InitializeParams, InitializeResponse},
    message::{Message, MessageError, split_binary},
    method::{INITIALIZED, Method},
    outgoing::Outgoing,
    process::Empty,
};
use tokio::time::timeout;

use crate::question;

/// How long a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How a client introduces itself.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Who connects, for the server's logs.
    pub client_name: String,
    /// A detached session to take up again.
    pub resume_session_id: Option<SessionId>,
    /// Extensions to ask for. What is not granted is done without.
    pub extensions: Vec<String>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            client_name: env!("CARGO_PKG_NAME").to_owned(),
            resume_session_id: None,
            extensions: vec!["binaryData".to_owned(), "lifecycle".to_owned()],
        }
    }
}

/// Why there is no session on a link. The link is closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Peer: it refused, such as a session that does not exist.
    #[error("server refused the session")]
    Refused(#[source] RpcError),
    /// Peer: it did not answer in time.
    #[error("server did not answer `initialize` in time")]
    Timeout,
    /// Peer: it hung up.
    #[error("server closed the connection before it answered")]
    Closed,
    /// Peer: what it sent is not a message.
    #[error("server sent something that is not a message")]
    Message(#[source] MessageError),
    /// Peer: what it answered is not the answer to `initialize`.
    #[error("server's answer to `initialize` does not decode")]
    Answer(#[source] serde_json::Error),
    /// Peer: it gave another session than the one asked for.
    #[error("server resumed session `{0}`, which was not asked for")]
    WrongSession(SessionId),
    /// Transport: nothing can be read.
    #[error("link cannot be read")]
    Read(#[from] ReadError),
    /// Transport: nothing can be written.
    #[error("link cannot be written to")]
    Write(#[from] io::Error),
}

/// Opens a session, or resumes one.
pub(crate) async fn shake_hands(
    link: &mut Link,
    options: ConnectOptions,
) -> Result<InitializeResponse, ConnectError> {
    let resumed = options.resume_session_id.clone();
    let response = timeout(TIMEOUT, initialize(link, options))
        .await
        .map_err(|_| ConnectError::Timeout)??;
    if resumed.is_some_and(|resumed| resumed != response.session_id) {
        return Err(ConnectError::WrongSession(response.session_id));
    }
    link.writer.push(
        Outgoing::notification(INITIALIZED, &Empty {}),
        Encoding::Text,
    );
    link.writer.flush().await?;
    Ok(response)
}

async fn initialize(
    link: &mut Link,
    options: ConnectOptions,
) -> Result<InitializeResponse, ConnectError> {
    let params = InitializeParams {
        client_name: options.client_name,
        resume_session_id: options.resume_session_id,
        extensions: Some(options.extensions),
    };
    let mut calls = Calls::new(1);
    // One is allowed, and nothing was asked yet.
    let Ok(id) = calls.ask(()) else {
        return Err(ConnectError::Closed);
    };
    let method = InitializeParams::NAME.as_str();
    link.writer
        .push(Outgoing::request(&id, method, &params), Encoding::Text);
    link.writer.flush().await?;
    loop {
        let frame = link.reader.next().await?.ok_or(ConnectError::Closed)?;
        // A resumed session's events may come first; whoever resumes reads what it missed.
        if split_binary(&frame).is_some() {
            continue;
        }
        let message = Message::decode(&frame).map_err(ConnectError::Message)?;
        if let Message::Request(request) = &message {
            // So may questions about its processes, which this client knows nothing of yet.
            let denied = |_| question::answer(&request.id, question::not_allowed());
            let answer = question::decode(request).map_or_else(|refusal| refusal, denied);
            link.writer.push(answer, Encoding::Text);
            link.writer.flush().await?;
        }
        if let Some(answer) = calls.handle_answer(message) {
            let result = answer.result.map_err(ConnectError::Refused)?;
            return serde_json::from_str(result.get()).map_err(ConnectError::Answer);
        }
    }
}
