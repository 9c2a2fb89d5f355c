//! Errors of the transport to an MCP server and of its launch.

use std::time::Duration;

use exec_core::output_log::ExitInfo;
use exec_env::{environment::StartError, process::ProcessError};
use rmcp::service::ClientInitializeError;

/// Why a message cannot be sent, or will not get a response.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum McpTransportError {
    /// Peer: the server exited.
    #[error("mcp server `{server}` {}{}", exit_text(.exit), stderr_suffix(.stderr))]
    Exited {
        /// Name of the server.
        server: String,
        /// Exit of the server.
        exit: Box<ExitInfo>,
        /// Last lines of its stderr.
        stderr: String,
    },
    /// Transport: the state of the server is unknown.
    #[error("mcp server `{server}` is unreachable: {error}{}", stderr_suffix(.stderr))]
    Lost {
        /// Name of the server.
        server: String,
        /// Cause.
        error: ProcessError,
        /// Last lines of its stderr.
        stderr: String,
    },
    /// Peer: the server is running, but has closed its stdin.
    #[error("mcp server `{server}` has closed its stdin{}", stderr_suffix(.stderr))]
    StdinClosed {
        /// Name of the server.
        server: String,
        /// Last lines of its stderr.
        stderr: String,
    },
    /// Peer: it wrote an overlong line.
    #[error("mcp server `{server}` wrote a line of more than {limit} bytes")]
    LineTooLong {
        /// Name of the server.
        server: String,
        /// Maximum length in bytes.
        limit: usize,
    },
    /// Peer: the response is malformed.
    #[error("mcp server `{server}` sent a malformed response: {reason}")]
    Malformed {
        /// Name of the server.
        server: String,
        /// Why it is malformed.
        reason: String,
    },
    /// Caller: the message cannot be encoded as JSON.
    #[error("message cannot be encoded: {0}")]
    Encode(String),
    /// Caller: the transport was closed.
    #[error("transport to mcp server `{0}` is closed")]
    Closed(String),
}

/// Why a server was not launched or connected. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The process did not start; the inner error says who must act.
    #[error("mcp server `{server}` did not start")]
    Start {
        /// Name of the server.
        server: String,
        /// Cause.
        #[source]
        error: StartError,
    },
    /// Peer: it did not respond to `initialize` in time.
    #[error("mcp server `{server}` was not ready within {limit:?}{}", stderr_suffix(.stderr))]
    TimedOut {
        /// Name of the server.
        server: String,
        /// The timeout.
        limit: Duration,
        /// Last lines of its stderr.
        stderr: String,
    },
    /// The server exited or became unreachable before it was ready; the inner error says who must
    /// act.
    #[error(transparent)]
    Transport(#[from] McpTransportError),
    /// Peer: it violated the protocol.
    #[error("mcp server `{server}` did not initialize")]
    Initialize {
        /// Name of the server.
        server: String,
        /// Cause.
        #[source]
        error: Box<ClientInitializeError>,
    },
}

fn exit_text(exit: &ExitInfo) -> String {
    match exit.signal {
        Some(signal) => format!("was killed by {signal}"),
        None => format!("exited with code {}", exit.code),
    }
}

fn stderr_suffix(stderr: &str) -> String {
    if stderr.is_empty() {
        String::new()
    } else {
        format!("; its last stderr: {stderr}")
    }
}
