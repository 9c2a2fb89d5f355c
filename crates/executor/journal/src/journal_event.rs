//! Events of a process that are not output.

use exec_core::output_log::ExitInfo;
use exec_wire::{
    id::{OutputSeq, WriteId},
    process::{ExitCause, OutputStream, ResourceUsage},
    signal_name::known_signal_name,
};
use serde::{Deserialize, Deserializer, Serialize};

/// Event of a process that is not output. A reader skips kinds that it does not know.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
#[non_exhaustive]
pub enum JournalEvent {
    /// The process runs.
    Started {
        /// OS pid of the command.
        os_pid: u32,
        /// OS pid of its supervisor.
        supervisor_pid: u32,
        /// OS pid of the spawner.
        spawner_pid: u32,
    },
    /// Input was accepted. The journal itself records it.
    Input {
        /// Id of the write.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<WriteId>,
        /// Place in the input file.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// All input was delivered and its file emptied. The journal itself records it.
    InputReset,
    /// No further input follows.
    InputEnd,
    /// The server closed the command's input, and the keeper its copy.
    InputClosed,
    /// The terminal was resized.
    Resize {
        /// Number of rows.
        rows: u16,
        /// Number of columns.
        cols: u16,
    },
    /// The process is being terminated.
    Terminating {
        /// Reason.
        cause: ExitCause,
        /// Time of the SIGKILL in milliseconds since boot, after a graceful start.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kill_at_boot_ms: Option<u64>,
    },
    /// The process was reaped.
    Exited {
        /// Sequence number.
        seq: OutputSeq,
        /// How it ended.
        #[serde(with = "ExitFields")]
        exit: ExitInfo,
        /// Milliseconds since the Unix epoch.
        at_ms: u64,
    },
    /// All output ended.
    Closed {
        /// Sequence number.
        seq: OutputSeq,
        /// Milliseconds since the Unix epoch.
        at_ms: u64,
    },
    /// The process now belongs to the server.
    Detached,
    /// The oldest segments were evicted. The journal itself records it.
    Evicted {
        /// Number of the last evicted segment.
        segment: u64,
        /// Last evicted sequence number.
        last_seq: OutputSeq,
        /// Evicted bytes of each stream, all segments together.
        bytes: [u64; 3],
    },
}

/// Returns the name of a stream's data files.
pub(crate) fn stream_name(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
        OutputStream::Pty => "terminal",
    }
}

/// Encoding of [`ExitInfo`].
#[derive(Deserialize, Serialize)]
#[serde(remote = "ExitInfo", rename_all = "camelCase")]
struct ExitFields {
    code: i32,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "read_signal"
    )]
    signal: Option<SignalName>,
    cause: ExitCause,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<ResourceUsage>,
    #[serde(default)]
    sandbox_denied: bool,
}

/// An alias, because serde would borrow a field that is a reference from its input.
type SignalName = &'static str;

fn read_signal<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<SignalName>, D::Error> {
    let name = Option::<String>::deserialize(reader)?;
    Ok(name.as_deref().map(known_signal_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_round_trip_as_json() {
        let usage = ResourceUsage {
            wall_ms: 1,
            user_ms: 2,
            system_ms: 3,
            max_rss_bytes: 4,
        };
        let exit = ExitInfo {
            code: 137,
            signal: Some("SIGKILL"),
            cause: ExitCause::WallLimit,
            usage: Some(usage),
            sandbox_denied: true,
        };
        let events = [
            JournalEvent::Started {
                os_pid: 1,
                supervisor_pid: 2,
                spawner_pid: 3,
            },
            JournalEvent::Input {
                id: Some(WriteId::new("é\"\n").unwrap()),
                offset: 4,
                len: 5,
            },
            JournalEvent::Input {
                id: None,
                offset: u64::MAX,
                len: 0,
            },
            JournalEvent::InputReset,
            JournalEvent::InputEnd,
            JournalEvent::InputClosed,
            JournalEvent::Resize { rows: 6, cols: 7 },
            JournalEvent::Terminating {
                cause: ExitCause::IdleLimit,
                kill_at_boot_ms: Some(8),
            },
            JournalEvent::Exited {
                seq: OutputSeq(9),
                exit,
                at_ms: 10,
            },
            JournalEvent::Closed {
                seq: OutputSeq(11),
                at_ms: 12,
            },
            JournalEvent::Detached,
            JournalEvent::Evicted {
                segment: 14,
                last_seq: OutputSeq(15),
                bytes: [1, 2, 3],
            },
        ];
        for event in events {
            let text = serde_json::to_string(&event).unwrap();
            assert_eq!(
                serde_json::from_str::<JournalEvent>(&text).unwrap(),
                event,
                "{text}"
            );
        }
    }

    #[test]
    fn unknown_signal_keeps_its_place() {
        let text = r#"{"code":1,"signal":"SIGFOO","cause":"newer"}"#;
        let exit = ExitFields::deserialize(&mut serde_json::Deserializer::from_str(text)).unwrap();
        assert_eq!(exit.signal, Some("SIGUNKNOWN"));
        assert_eq!(exit.cause, ExitCause::Unknown);
    }
}
