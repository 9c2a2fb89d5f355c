//! One client at the other end of two pipes.

use rmcp::{ServiceExt, service::ServerInitializeError};
use tokio::io::{AsyncRead, AsyncWrite};

use super::server::{Door, Tools};

/// Why a client was not served to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StdioError {
    /// Peer: it did not begin as the protocol says.
    #[error("the client did not begin a session")]
    Handshake(#[source] Box<ServerInitializeError>),
    /// We: the task that serves it broke.
    #[error("the session broke")]
    Broken(#[source] tokio::task::JoinError),
}

impl Tools {
    /// Serves one client until its input ends, then ends its commands. Calls that are under way then have
    /// a few seconds to be answered, for clients that write everything at once. Dropping the future ends
    /// nothing: call [`Tools::shut_down`] then.
    ///
    /// # Errors
    /// When the client does not speak the protocol.
    pub async fn serve<R, W>(&self, input: R, output: W) -> Result<(), StdioError>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let running = match self.server(Door::Stdio).serve((input, output)).await {
            Ok(running) => running,
            // Whoever leaves before saying anything was only looking.
            Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(StdioError::Handshake(Box::new(error))),
        };
        let ended = running.waiting().await;
        self.shut_down().await;
        ended.map(drop).map_err(StdioError::Broken)
    }
}
