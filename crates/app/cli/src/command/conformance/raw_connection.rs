//! Connection that sends and receives messages as they are.

use std::{collections::VecDeque, io, time::Duration};

use exec_client::connect::ServerConnector;
use exec_transport::{
    connect::ConnectError,
    link::{DataEncoding, Link},
};
use exec_wire::{base64_bytes, message::split_binary, outgoing_message::OutgoingMessage};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

use super::message_pattern::shortened;

/// Messages kept for later steps. A server that sends more fails the case.
const MAX_KEPT_MESSAGES: usize = 100_000;

/// Connection to the server under test.
#[derive(Debug)]
pub(super) struct RawConnection {
    link: Link,
    /// Received while waiting for another message.
    kept: VecDeque<Value>,
    last_id: i64,
    /// Limit of every wait.
    pub(super) wait: Duration,
}

/// Why a connection fails a case.
#[derive(Debug, thiserror::Error)]
pub(super) enum RawConnectionError {
    /// Peer: does not accept connections.
    #[error("cannot connect: {0}")]
    Connect(#[from] ConnectError),
    /// Peer: ended the connection.
    #[error("the server closed the connection while {0} was expected")]
    Closed(String),
    /// Peer: ended the connection while a message was sent.
    #[error("cannot send: {0}")]
    Send(io::Error),
    /// Peer: sent nothing that matches.
    #[error("no message in {wait:?} that matches {expected}{others}")]
    Timeout {
        expected: String,
        wait: Duration,
        others: String,
    },
    /// Peer: sent something else than an object.
    #[error("not a message: {0}")]
    Malformed(String),
    /// Peer: sent more than a case can keep.
    #[error("more than {MAX_KEPT_MESSAGES} messages that nothing asked for")]
    TooMany,
}

impl RawConnection {
    /// Opens a connection. Every wait of it is bounded by `wait`.
    pub(super) async fn open(
        connector: &dyn ServerConnector,
        wait: Duration,
    ) -> Result<Self, RawConnectionError> {
        Ok(Self {
            link: connector.connect().await?,
            kept: VecDeque::new(),
            last_id: 0,
            wait,
        })
    }

    /// Sends a text message.
    pub(super) async fn send(&mut self, text: &str) -> Result<(), RawConnectionError> {
        let message = OutgoingMessage::Text(text.as_bytes().to_vec());
        self.link.writer.push(message, DataEncoding::Text);
        match timeout(self.wait, self.link.writer.flush()).await {
            Ok(sent) => sent.map_err(RawConnectionError::Send),
            Err(_) => Err(RawConnectionError::Send(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Sends a request, and returns its response.
    pub(super) async fn call(
        &mut self,
        method: &str,
        params: Option<&Value>,
    ) -> Result<Value, RawConnectionError> {
        self.last_id += 1;
        let id = self.last_id;
        let mut request = json!({ "id": id, "method": method });
        if let Some(params) = params {
            request["params"] = params.clone();
        }
        self.send(&request.to_string()).await?;
        self.response(&json!(id)).await
    }

    /// Waits for the response with this id.
    pub(super) async fn response(&mut self, id: &Value) -> Result<Value, RawConnectionError> {
        let is_response =
            |message: &Value| message.get("method").is_none() && message.get("id") == Some(id);
        self.find(&format!("the response to request {id}"), is_response)
            .await
    }

    /// Waits for the next message that is wanted, and keeps the others.
    pub(super) async fn find(
        &mut self,
        expected: &str,
        mut is_wanted: impl FnMut(&Value) -> bool,
    ) -> Result<Value, RawConnectionError> {
        if let Some(index) = self.kept.iter().position(&mut is_wanted)
            && let Some(message) = self.kept.remove(index)
        {
            return Ok(message);
        }
        let deadline = Instant::now() + self.wait;
        loop {
            let Ok(received) = timeout_at(deadline, self.receive()).await else {
                let last = self.kept.back().map(shortened);
                return Err(RawConnectionError::Timeout {
                    expected: expected.to_owned(),
                    wait: self.wait,
                    others: last.map_or_else(String::new, |last| format!("; last got {last}")),
                });
            };
            let message =
                received?.ok_or_else(|| RawConnectionError::Closed(expected.to_owned()))?;
            if is_wanted(&message) {
                return Ok(message);
            }
            if self.kept.len() == MAX_KEPT_MESSAGES {
                return Err(RawConnectionError::TooMany);
            }
            self.kept.push_back(message);
        }
    }

    /// Returns the next message; `None` at the end of the connection. The data of a binary message
    /// becomes its member `rawData`.
    async fn receive(&mut self) -> Result<Option<Value>, RawConnectionError> {
        // A server may end a connection in any way.
        let Ok(Some(frame)) = self.link.reader.next().await else {
            return Ok(None);
        };
        let (text, data) = match split_binary(&frame) {
            None => (frame.clone(), None),
            Some(Ok((header, data))) => (header, Some(data)),
            Some(Err(error)) => return Err(RawConnectionError::Malformed(error.to_string())),
        };
        let malformed = || {
            let text = String::from_utf8_lossy(&text).chars().take(200).collect();
            RawConnectionError::Malformed(text)
        };
        let mut message: Value = serde_json::from_slice(&text).map_err(|_| malformed())?;
        let members = message.as_object_mut().ok_or_else(malformed)?;
        if let Some(data) = data {
            let mut encoded = Vec::new();
            base64_bytes::encode_append(&data, &mut encoded);
            let encoded = String::from_utf8_lossy(&encoded).into_owned();
            members.insert("rawData".to_owned(), Value::String(encoded));
        }
        Ok(Some(message))
    }
}
