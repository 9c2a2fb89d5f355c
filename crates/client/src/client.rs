//! A connection to a server, and the typed calls over it.

use std::{fmt, sync::Arc};

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
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};

use crate::{
    driver::{Answered, Ask, Driver, Reply, Request, Waiter},
    events::ProcessEvents,
    handshake::{ConnectError, ConnectOptions, shake_hands},
    hub::{Hub, QUEUED_BYTES},
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
        let (asks, queue) = mpsc::channel(QUEUE);
        let hub = Arc::new(Hub::default());
        tokio::spawn(Driver::new(link, encoding(&session), queue, Arc::clone(&hub)).run());
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
        self.ask(params, Waiter::Call)
            .map(|reply| decode::<M>(&reply?))
            .boxed()
    }

    /// Starts a process whose events are taken from the first one on.
    pub(crate) fn start(
        &self,
        params: StartProcess,
        events: Arc<ProcessEvents>,
    ) -> impl Future<Output = Result<Started, CallError>> + Send + use<> {
        self.ask(params, |reply| Waiter::Start(reply, events))
            .map(|reply| decode::<StartProcess>(&reply?))
    }

    /// Writes to a process; the bytes travel raw if that was granted.
    pub(crate) fn write(
        &self,
        process_id: ProcessId,
        write_id: WriteId,
        data: Bytes,
    ) -> impl Future<Output = Result<WriteResult, CallError>> + Send + use<> {
        let params = WriteProcess {
            process_id,
            chunk: None,
            write_id,
        };
        self.ask_with_data(params, "chunk", data, Waiter::Call)
            .map(|reply| decode::<WriteProcess>(&reply?))
    }

    /// Asks for something; `waiter` says who waits for the answer.
    pub(crate) fn ask<M, W>(
        &self,
        params: M,
        waiter: W,
    ) -> impl Future<Output = Reply> + Send + use<M, W>
    where
        M: Method + Send + 'static,
        W: FnOnce(oneshot::Sender<Reply>) -> Waiter,
    {
        let method = M::NAME.as_str();
        let request = move |id: &RequestId| Outgoing::request(id, method, &params);
        self.send(Box::new(request), waiter)
    }

    /// Asks for something that carries bytes, if there is room for them.
    pub(crate) fn ask_with_data<M, W>(
        &self,
        params: M,
        member: &'static str,
        data: Bytes,
        waiter: W,
    ) -> impl Future<Output = Reply> + Send + use<M, W>
    where
        M: Method + Send + 'static,
        W: FnOnce(oneshot::Sender<Reply>) -> Waiter,
    {
        let room = self.shared.hub.reserve(data.len());
        let sent = room.ok_or(CallError::NoRoom(QUEUED_BYTES)).map(|room| {
            let method = M::NAME.as_str();
            let request = move |id: &RequestId| {
                drop(room);
                Outgoing::request_with_data(id, method, &params, member, data)
            };
            self.send(Box::new(request), waiter)
        });
        async move { sent?.await }
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.shared.hub
    }

    /// Tells how data travels on this connection.
    pub(crate) fn encoding(&self) -> Encoding {
        encoding(&self.shared.session)
    }

    fn send<W: FnOnce(oneshot::Sender<Reply>) -> Waiter>(
        &self,
        request: Request,
        waiter: W,
    ) -> impl Future<Output = Reply> + Send + use<W> {
        let (reply, answer) = oneshot::channel();
        let waiter = waiter(reply);
        let (asks, waiting) = (self.shared.asks.clone(), self.shared.hub.wait());
        let sent = asks
            .try_send(Ask { request, waiter })
            .map_err(|error| match error {
                TrySendError::Full(_) => CallError::TooMany(QUEUE),
                TrySendError::Closed(_) => CallError::Disconnected,
            });
        async move {
            // Whoever waits for an answer keeps the connection open, and read.
            let _kept = (asks, waiting);
            sent?;
            answer.await.unwrap_or(Err(CallError::Disconnected))
        }
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
    /// Caller: too much waits to be sent.
    #[error("more than {0} bytes of writes wait to be sent")]
    NoRoom(usize),
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

/// Decodes a result.
pub(crate) fn decode<M: Method>(answered: &Answered) -> Result<M::Result, CallError> {
    serde_json::from_slice(&answered.result).map_err(|error| malformed::<M>(&error))
}

/// The result does not have the method's form.
pub(crate) fn malformed<M: Method>(reason: &dyn fmt::Display) -> CallError {
    CallError::Malformed {
        method: M::NAME.as_str(),
        reason: reason.to_string(),
    }
}

fn encoding(session: &InitializeResponse) -> Encoding {
    if session.extensions.contains(&Extension::BinaryData) {
        Encoding::Binary
    } else {
        Encoding::Text
    }
}
