//! Notifications from the server, such as process events and file changes.

use bytes::Bytes;
use exec_core::output_log::{ExitInfo, LogEvent, OutputChunk};
use exec_wire::{
    base64_bytes::Base64Bytes,
    fs::{MissingPathNotification, WatchNotification},
    http::HttpBodyDelta,
    id::{OutputSeq, ProcessId},
    message::{ParamsError, RpcNotification, decode_params},
    method::notification,
    network::PolicyDecision,
    process::{ExitCause, OutputStream, ProcessClosed, ProcessExited, ProcessStarted},
};
use serde::Deserialize;

/// A decoded notification.
#[derive(Debug)]
pub(crate) enum ServerNotification {
    /// An event of a process.
    Event(ProcessId, LogEvent),
    /// A process has started.
    Started(ProcessStarted),
    /// Changes of watched files.
    Changed(WatchNotification),
    /// The end of a missing-path watch.
    MissingChanged(MissingPathNotification),
    /// A network policy decision for a process.
    Decided(PolicyDecision),
    /// A chunk of a streamed body, or its end.
    BodyDelta(HttpBodyDelta, Bytes),
    /// An unknown notification.
    Unknown,
}

/// Parameters of `process/output`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OutputParams {
    process_id: ProcessId,
    seq: OutputSeq,
    stream: OutputStream,
    #[serde(default)]
    chunk: Option<Base64Bytes>,
}

/// Peer: a known notification is malformed.
#[derive(Debug)]
pub(crate) struct NotificationError {
    /// The process of the notification, if it names one.
    pub(crate) process: Option<ProcessId>,
    /// The decoding error.
    pub(crate) reason: String,
}

/// Decodes a notification. Unknown ones are not errors.
pub(crate) fn decode(
    message: &RpcNotification<'_>,
) -> Result<ServerNotification, NotificationError> {
    decode_known(message).map_err(|ParamsError(reason)| NotificationError {
        process: decode_params(message.params)
            .ok()
            .map(|ProcessRef { process_id }| process_id),
        reason,
    })
}

/// The member that names the process of a notification.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProcessRef {
    process_id: ProcessId,
}

fn decode_known(message: &RpcNotification<'_>) -> Result<ServerNotification, ParamsError> {
    match &*message.method {
        notification::PROCESS_OUTPUT => {
            let output: OutputParams = decode_params(message.params)?;
            let inside = output.chunk.map(|chunk| chunk.0);
            let data: Bytes = inside
                .or_else(|| message.data.clone())
                .ok_or_else(|| ParamsError("missing field `chunk`".to_owned()))?;
            let chunk = OutputChunk {
                seq: output.seq,
                stream: output.stream,
                data,
            };
            Ok(ServerNotification::Event(
                output.process_id,
                LogEvent::Output(chunk),
            ))
        }
        notification::PROCESS_EXITED => {
            let exited: ProcessExited = decode_params(message.params)?;
            let exit = ExitInfo {
                code: exited.exit_code,
                signal: exited.signal.as_deref().map(signal_name),
                cause: exited.cause.unwrap_or(ExitCause::Unknown),
                usage: exited.usage,
                sandbox_denied: exited.sandbox_denied.unwrap_or(false),
            };
            Ok(ServerNotification::Event(
                exited.process_id,
                LogEvent::Exited(exited.seq, exit),
            ))
        }
        notification::PROCESS_CLOSED => {
            let closed: ProcessClosed = decode_params(message.params)?;
            Ok(ServerNotification::Event(
                closed.process_id,
                LogEvent::Closed(closed.seq),
            ))
        }
        notification::PROCESS_STARTED => {
            decode_params(message.params).map(ServerNotification::Started)
        }
        notification::FS_CHANGED => decode_params(message.params).map(ServerNotification::Changed),
        notification::FS_MISSING_CHANGED => {
            decode_params(message.params).map(ServerNotification::MissingChanged)
        }
        notification::HTTP_BODY_DELTA => {
            let mut delta: HttpBodyDelta = decode_params(message.params)?;
            let inside = delta.delta_base64.take().map(|data| data.0);
            let data = inside
                .or_else(|| message.data.clone())
                .ok_or_else(|| ParamsError("missing field `deltaBase64`".to_owned()))?;
            Ok(ServerNotification::BodyDelta(delta, data))
        }
        // Decision records are best-effort: ignore malformed ones.
        notification::NETWORK_POLICY_DECISION => Ok(decode_params(message.params)
            .map_or(ServerNotification::Unknown, ServerNotification::Decided)),
        _ => Ok(ServerNotification::Unknown),
    }
}

/// Returns the static name of a signal.
pub(crate) fn signal_name(name: &str) -> &'static str {
    SIGNALS
        .iter()
        .find(|known| **known == name)
        .copied()
        .unwrap_or("SIGUNKNOWN")
}

const SIGNALS: &[&str] = &[
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
    "SIGEMT",
    "SIGRT",
];
