//! A connection to a server, and the typed calls over it.

use std::sync::Arc;

use bytes::Bytes;
use exec_transport::link::{Encoding, Link};
use exec_wire::{
    error::RpcError,
    id::{ProcessId, WriteId},
    initialize::{Extension, InitializeResponse},
    message::RequestId,
    method::Method,
    outgoing::Outgoing,
    process::{StartProcess, Started, WriteProcess, WriteResult},
};
use futures_util::future::{BoxFuture, FutureExt, ready};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};

use crate::{
    driver::{Ask, Driver, Reply, Waiter},
    events::ProcessEvents,
    handshake::{ConnectError, ConnectOptions, shake_hands},
    hub::Hub,
};

/// Calls that wait for the driver to take them; one more is refused.
const QUEUE: usize = 1024;

/// A connection to an exec-server. Clones share it; it is closed when the last of them, and of the
/// processes and event streams that came from it, is dropped.
#[derive(Clone, Debug)]
pub struct ExecServerClient {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    asks: mpsc::Sender<Ask>,
    hub: Arc<Hub>,
    session: InitializeResponse,
}

impl ExecServerClient {
    /// Shakes hands over a link and takes it into use. Dropping the future closes the link.
    pub async fn connect(mut link: Link, options: ConnectOptions) -> Result<Self, ConnectError> {
        let session = shake_hands(&mut link, options).await?;
        let binary = session.extensions.contains(&Extension::BinaryData);
        let encoding = if binary {
            Encoding::Binary
        } else {
            Encoding::Text
        };
        let (asks, queue) = mpsc::channel(QUEUE);
        let hub = Arc::new(Hub::default());
        tokio::spawn(Driver::new(link, encoding, queue, Arc::clone(&hub)).run());
        Ok(Self {
            shared: Arc::new(Shared { asks, hub, session }),
        })
    }

    /// Returns what the server answered to `initialize`.
    pub fn session(&self) -> &InitializeResponse {
        &self.shared.session
    }

    /// Resolves when the connection is gone.
    pub async fn closed(&self) {
        self.shared.asks.closed().await;
    }

    /// Asks the server for something. The place in line is taken by calling, not by awaiting;
    /// dropping the future gives up the answer, not the request.
    pub fn call<M>(&self, params: M) -> BoxFuture<'static, Result<M::Result, CallError>>
    where
        M: Method + Send + 'static,
        M::Result: Send,
    {
        let method = M::NAME.as_str();
        self.ask(
            method,
            move |id| Outgoing::request(id, method, &params),
            Waiter::Call,
        )
    }

    /// Starts a process whose events are taken from the first one on.
    pub(crate) fn start(
        &self,
        params: StartProcess,
        events: Arc<ProcessEvents>,
    ) -> BoxFuture<'static, Result<Started, CallError>> {
        let method = StartProcess::NAME.as_str();
        let request = move |id: &RequestId| Outgoing::request(id, method, &params);
        self.ask(method, request, |reply| Waiter::Start(reply, events))
    }

    /// Writes to a process; the bytes travel raw if that was granted.
    pub(crate) fn write(
        &self,
        process_id: ProcessId,
        write_id: WriteId,
        data: Bytes,
    ) -> BoxFuture<'static, Result<WriteResult, CallError>> {
        let method = WriteProcess::NAME.as_str();
        let Some(room) = self.shared.hub.reserve(data.len()) else {
            return ready(Err(CallError::TooMany(QUEUE))).boxed();
        };
        let params = WriteProcess {
            process_id,
            chunk: None,
            write_id,
        };
        let request = move |id: &RequestId| {
            drop(room);
            Outgoing::request_with_data(id, method, &params, "chunk", data)
        };
        self.ask(method, request, Waiter::Call)
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.shared.hub
    }

    fn ask<R: DeserializeOwned + Send + 'static>(
        &self,
        method: &'static str,
        request: impl FnOnce(&RequestId) -> Outgoing + Send + 'static,
        waiter: impl FnOnce(oneshot::Sender<Reply>) -> Waiter,
    ) -> BoxFuture<'static, Result<R, CallError>> {
        let (reply, answer) = oneshot::channel();
        let ask = Ask {
            request: Box::new(request),
            waiter: waiter(reply),
        };
        let (asks, waiting) = (self.shared.asks.clone(), self.shared.hub.wait());
        match asks.try_send(ask) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return ready(Err(CallError::TooMany(QUEUE))).boxed(),
            Err(TrySendError::Closed(_)) => return ready(Err(CallError::Disconnected)).boxed(),
        }
        async move {
            // Whoever waits for an answer keeps the connection open, and read.
            let _kept = (asks, waiting);
            decode(method, &answer.await.map_err(|_| CallError::Disconnected)??)
        }
        .boxed()
    }
}

/// Why a call has no result.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Peer: it answered with an error.
    #[error(transparent)]
    Remote(RpcError),
    /// Caller: too many answers are outstanding.
    #[error("more than {0} calls are unanswered")]
    TooMany(usize),
    /// Caller: the id names a process that this connection still follows.
    #[error("process id `{0}` is in use")]
    IdInUse(ProcessId),
    /// Peer: the result does not have the method's form.
    #[error("result of `{method}` does not decode: {reason}")]
    Malformed {
        /// The method.
        method: &'static str,
        /// What was expected.
        reason: String,
    },
    /// Transport: the connection is gone.
    #[error("connection to the exec-server is gone")]
    Disconnected,
}

fn decode<R: DeserializeOwned>(method: &'static str, result: &RawValue) -> Result<R, CallError> {
    serde_json::from_str(result.get()).map_err(|error| CallError::Malformed {
        method,
        reason: error.to_string(),
    })
}
