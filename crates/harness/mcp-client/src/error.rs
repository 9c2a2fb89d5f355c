//! Why an MCP server cannot be spoken to.

use std::time::Duration;

use exec_core::log::Exit;
use exec_env::{backend::StartError, process::ProcessError};
use rmcp::service::ClientInitializeError;

/// Why a message cannot be sent, or will not be answered.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum McpTransportError {
    /// Peer: the server ended.
    #[error("mcp server `{server}` {}{}", ended(.exit), last_words(.stderr))]
    Exited {
        /// What it is called.
        server: String,
        /// How it ended.
        exit: Box<Exit>,
        /// The last lines that it wrote to its standard error.
        stderr: String,
    },
    /// Transport: nothing more can be learned of the server.
    #[error("mcp server `{server}` is out of reach: {error}{}", last_words(.stderr))]
    Lost {
        /// What it is called.
        server: String,
        /// Why.
        error: ProcessError,
        /// The last lines that it wrote to its standard error.
        stderr: String,
    },
    /// Peer: the server runs, but has closed its input.
    #[error("mcp server `{server}` has closed its stdin{}", last_words(.stderr))]
    StdinClosed {
        /// What it is called.
        server: String,
        /// The last lines that it wrote to its standard error.
        stderr: String,
    },
    /// Peer: it wrote a line that is longer than it may be.
    #[error("mcp server `{server}` wrote a line of more than {limit} bytes")]
    LineTooLong {
        /// What it is called.
        server: String,
        /// The most bytes it may have.
        limit: usize,
    },
    /// Peer: the answer is none.
    #[error("mcp server `{server}` sent an answer that cannot be read: {reason}")]
    Malformed {
        /// What it is called.
        server: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Caller: the message has no JSON form.
    #[error("message cannot be encoded: {0}")]
    Encode(String),
    /// Caller: the transport was closed.
    #[error("transport to mcp server `{0}` is closed")]
    Closed(String),
}

/// Why a server was not launched, or not connected to. In every case nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Whoever the inner error blames: there is no process.
    #[error("mcp server `{server}` did not start")]
    Start {
        /// What it is called.
        server: String,
        /// Why.
        #[source]
        error: StartError,
    },
    /// Peer: it has not answered `initialize` in time.
    #[error("mcp server `{server}` was not ready within {limit:?}{}", last_words(.stderr))]
    TimedOut {
        /// What it is called.
        server: String,
        /// The time it had.
        limit: Duration,
        /// The last lines that it wrote to its standard error.
        stderr: String,
    },
    /// Whoever the inner error blames: it ended, or got out of reach, before it was ready.
    #[error(transparent)]
    Transport(#[from] McpTransportError),
    /// Peer: it does not speak the protocol.
    #[error("mcp server `{server}` did not initialize")]
    Initialize {
        /// What it is called.
        server: String,
        /// Why.
        #[source]
        error: Box<ClientInitializeError>,
    },
}

fn ended(exit: &Exit) -> String {
    match exit.signal {
        Some(signal) => format!("was killed by {signal}"),
        None => format!("exited with code {}", exit.code),
    }
}

fn last_words(stderr: &str) -> String {
    if stderr.is_empty() {
        String::new()
    } else {
        format!("; its last words: {stderr}")
    }
}
