//! What a server understands. A member that it would ignore is refused before it is sent, so that
//! nothing is done otherwise than it was asked for.
//!
//! Not here: methods that a server does not have. It refuses those by itself.

use exec_env::{
    backend::StartError,
    command::{Command, Io},
    filesystem::{FileError, Open},
};
use exec_wire::{
    environment::Capabilities,
    error::{ErrorCode, RpcError},
    fs::{OpenMode, WriteFile},
    initialize::InitializeResponse,
    method::MethodName,
    process::{Limits, TerminalSize, TerminateMode},
};

/// The one size of a terminal that an older server makes.
const STOCK_TERMINAL_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// Which members a server looks at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ServerKind {
    /// It has our extensions.
    Extended,
    /// It said nothing of itself, and knows no extension: a stock server.
    Stock,
}

impl ServerKind {
    /// Tells them apart by the answer to `initialize`.
    pub(crate) fn of(session: &InitializeResponse) -> Self {
        if session.server.is_none() && session.extensions.is_empty() {
            Self::Stock
        } else {
            Self::Extended
        }
    }

    /// Refuses a process that belongs to the server.
    pub(crate) fn check_detached(self) -> Result<(), StartError> {
        match self {
            Self::Extended => Ok(()),
            Self::Stock => refuse("detached", UNSUPPORTED),
        }
    }

    /// Refuses to ask for a process that belongs to the server, or for all there are.
    pub(crate) fn check_method(self, method: MethodName) -> Result<(), RpcError> {
        match self {
            Self::Extended => Ok(()),
            Self::Stock => {
                let text = format!("`{}`: {UNSUPPORTED}", method.as_str());
                Err(RpcError::new(ErrorCode::METHOD_NOT_FOUND, text))
            }
        }
    }

    /// Refuses limits, and a terminal of another size than the server makes.
    pub(crate) fn check_start(self, command: &Command) -> Result<(), StartError> {
        if self == Self::Extended {
            return Ok(());
        }
        if command.limits != Limits::default() {
            return refuse("limits", "this server sets none");
        }
        match command.io {
            Io::Terminal(size) if size != STOCK_TERMINAL_SIZE => refuse(
                "size",
                "terminals of this server have 24 rows and 80 columns",
            ),
            Io::Terminal(_) | Io::Pipes { .. } => Ok(()),
        }
    }

    /// Refuses to create parents, to replace in one step, and to set a mode.
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

    /// Refuses to write parts of a file that is kept.
    pub(crate) fn check_open_mode(self, mode: OpenMode) -> Result<(), FileError> {
        match (self, mode) {
            (Self::Extended, _) | (Self::Stock, OpenMode::Read | OpenMode::Replace) => Ok(()),
            (Self::Stock, OpenMode::Update) => {
                Err(FileError::Refused(format!("mode: {UNSUPPORTED}")))
            }
        }
    }

    /// Refuses to let a process end by itself.
    pub(crate) fn check_terminate(self, mode: TerminateMode) -> Result<(), RpcError> {
        match (self, mode) {
            (Self::Extended, _) | (Self::Stock, TerminateMode::Force) => Ok(()),
            (Self::Stock, _) => Err(RpcError::invalid_params(format!("mode: {UNSUPPORTED}"))),
        }
    }
}

const UNSUPPORTED: &str = "this server does not know it";

/// Refuses a proxy that the host does not run, or not in this way. A shell's state is left away: the
/// command runs without it, as it would where it cannot be taken.
pub(crate) fn check_capabilities(
    command: &mut Command,
    capabilities: &Capabilities,
) -> Result<(), StartError> {
    if !capabilities.shell_snapshot_v2 {
        command.shell_snapshot = None;
    }
    let Some(network) = &command.network.proxy else {
        return Ok(());
    };
    let proxy = &network.proxy;
    if !capabilities.network_proxy_launch {
        refuse("networkProxy", "this server runs none")
    } else if proxy.review_domains.is_some() && !capabilities.network_proxy_review_domains {
        refuse("networkProxy.proxy.reviewDomains", UNSUPPORTED)
    } else if proxy.masking_member().is_some() && !capabilities.credential_masking {
        refuse("networkProxy.proxy.credentialMasking", UNSUPPORTED)
    } else {
        Ok(())
    }
}

/// Returns whether opening a file so takes an ability of the server.
pub(crate) fn needs_capability(open: &Open) -> bool {
    open.sandbox.is_some() || open.mode != OpenMode::Read
}

/// Refuses to open under a policy, or to replace, where that is not possible.
pub(crate) fn check_open(open: &Open, capabilities: &Capabilities) -> Result<(), FileError> {
    let member = if open.sandbox.is_some() && !capabilities.sandboxed_file_streaming {
        "sandbox"
    } else if open.mode != OpenMode::Read && !capabilities.file_write_streaming {
        "mode"
    } else {
        return Ok(());
    };
    let text = format!("{member}: this server cannot open a file so");
    Err(FileError::Refused(text))
}

fn refuse(field: &'static str, reason: &str) -> Result<(), StartError> {
    let reason = reason.to_owned();
    Err(StartError::Refused { field, reason })
}
