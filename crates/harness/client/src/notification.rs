//! What a server tells without being asked: events of processes, changes of files.

use bytes::Bytes;
use exec_core::log::{Event, Exit, OutputChunk};
use exec_wire::{
    bytes::Base64,
    fs::{Changed, MissingChanged},
    http::HttpBodyDelta,
    id::{OutputSeq, ProcessId},
    message::{Notification, ParamsError, decode_params},
    method::notification,
    network::PolicyDecision,
    process::{ExitCause, Exited, OutputStream, ProcessClosed, ProcessStarted},
};
use serde::Deserialize;

/// What was told.
#[derive(Debug)]
pub(crate) enum ServerNotification {
    /// Something happened to a process.
    Event(ProcessId, Event),
    /// A process runs.
    Started(ProcessStarted),
    /// Watched files have changed.
    Changed(Changed),
    /// A watch for missing paths is over.
    MissingChanged(MissingChanged),
    /// Something was decided about the network of a process.
    Decided(PolicyDecision),
    /// A part of a streamed body, or its end.
    BodyDelta(HttpBodyDelta, Bytes),
    /// Nothing that this client knows.
    Unknown,
}

/// `process/output`, as it is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OutputParams {
    process_id: ProcessId,
    seq: OutputSeq,
    stream: OutputStream,
    #[serde(default)]
    chunk: Option<Base64>,
}

/// Peer: a known notification does not have its form.
#[derive(Debug)]
pub(crate) struct NotificationError {
    /// The process that it is about, if it is about one.
    pub(crate) process: Option<ProcessId>,
    /// What was expected.
    pub(crate) reason: String,
}

/// Decodes a notification. Only those that are known can fail.
pub(crate) fn decode(message: &Notification<'_>) -> Result<ServerNotification, NotificationError> {
    decode_known(message).map_err(|ParamsError(reason)| NotificationError {
        process: decode_params(message.params)
            .ok()
            .map(|ProcessRef { process_id }| process_id),
        reason,
    })
}

/// The one member that tells which process a notification is about.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProcessRef {
    process_id: ProcessId,
}

fn decode_known(message: &Notification<'_>) -> Result<ServerNotification, ParamsError> {
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
                Event::Output(chunk),
            ))
        }
        notification::PROCESS_EXITED => {
            let exited: Exited = decode_params(message.params)?;
            let exit = Exit {
                code: exited.exit_code,
                signal: exited.signal.as_deref().map(signal_name),
                cause: exited.cause.unwrap_or(ExitCause::Unknown),
                usage: exited.usage,
                sandbox_denied: exited.sandbox_denied.unwrap_or(false),
            };
            Ok(ServerNotification::Event(
                exited.process_id,
                Event::Exited(exited.seq, exit),
            ))
        }
        notification::PROCESS_CLOSED => {
            let closed: ProcessClosed = decode_params(message.params)?;
            Ok(ServerNotification::Event(
                closed.process_id,
                Event::Closed(closed.seq),
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
        // A record may be lost; one that is not understood is.
        notification::NETWORK_POLICY_DECISION => Ok(decode_params(message.params)
            .map_or(ServerNotification::Unknown, ServerNotification::Decided)),
        _ => Ok(ServerNotification::Unknown),
    }
}

/// Finds a signal's name among those that live as long as the program.
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
