//! Which request members a server understands. The client rejects a request with a member that the
//! server would ignore, so that no request is silently done differently.
//!
//! Not here: unknown methods, which servers reject themselves.

use exec_env::{
    command::{Command, ProcessIo},
    environment::StartError,
    filesystem::{FileError, OpenFileRequest},
};
use exec_wire::{
    environment::ServerCapabilities,
    error::{ErrorCode, RpcError},
    fs::{OpenMode, WriteFile},
    initialize::InitializeResponse,
    method::MethodName,
    process::{ProcessLimits, TerminalSize, TerminateMode},
};

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
