//! Limits of the state directory, each with its reason.

use std::time::Duration;

use exec_wire::limits::RETAINED_OUTPUT_BYTES;

/// Format number of the state directory. A server refuses a directory with a larger one.
pub(crate) const SCHEMA: u32 = 1;
/// Maximum processes in a state directory. Bounds listing and start-up.
pub const MAX_RECORDS: usize = 65_536;
/// Maximum sessions in a state directory. Further ones are not saved.
pub(crate) const MAX_SESSIONS: usize = 65_536;
/// Maximum `head.json`: the arguments of a process as JSON.
pub(crate) const MAX_HEAD_FILE_BYTES: usize = 4 << 20;
/// Maximum session file. It holds ids and one principal.
pub(crate) const MAX_SESSION_FILE_BYTES: usize = 64 << 10;
/// Maximum event. The largest holds a write id.
pub(crate) const MAX_EVENT_BYTES: usize = 64 << 10;
/// Size of `events` above which it is compacted, so that write ids do not fill the disk.
pub(crate) const COMPACT_EVENTS_BYTES: u64 = 1 << 20;
/// Bytes of `events` that recovery reads. Compaction keeps the file far below.
pub(crate) const MAX_EVENTS_BYTES: u64 = 64 << 20;
/// First bytes of a stream that stay readable after the eviction of their segment: what the
/// snapshot of a process shows with default retention.
pub const HEAD_BYTES: usize = RETAINED_OUTPUT_BYTES / 8;
/// Bounds of a segment. Smaller ones would be created too often; eviction of larger ones would
/// discard too much at once.
pub(crate) const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = (1 << 20)..=(64 << 20);
/// Maximum files in the directory of a process that recovery lists.
pub(crate) const MAX_RECORD_FILES: usize = 262_144;
/// Maximum chunks of one page. Bounds the bookkeeping of tiny writes.
pub(crate) const MAX_PAGE_CHUNKS: usize = 16_384;
/// Maximum bytes of one page, even if the caller asks for more.
pub(crate) const MAX_PAGE_BYTES: usize = 16 << 20;
/// Size of delivered input above which its file is emptied.
pub(crate) const RESET_INPUT_BYTES: u64 = 1 << 20;
/// Delivered input that is given back to the disk at once while more input is waiting.
pub(crate) const PUNCH_INPUT_BYTES: u64 = 8 << 20;
/// Delivered input that is never given back, in addition to the capacity of the pipe: a pipe
/// refers to pages of the file, and the command may have moved them on to another pipe.
pub(crate) const KEEP_INPUT_BYTES: u64 = 4 << 20;

/// Limits that the operator sets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct JournalLimits {
    /// Maximum output of one process on disk. The oldest segment is evicted first. At least two
    /// segments of 1 MiB are kept.
    pub process_bytes: u64,
    /// Maximum bytes of all processes. Above it the oldest ended processes are removed.
    pub total_bytes: u64,
    /// Age at which an ended process is removed.
    pub max_age: Duration,
}

impl Default for JournalLimits {
    fn default() -> Self {
        Self {
            process_bytes: 1 << 30,
            total_bytes: 8 << 30,
            max_age: Duration::from_secs(7 * 24 * 60 * 60),
        }
    }
}

impl JournalLimits {
    /// Returns the size at which a segment is full.
    pub(crate) fn segment_bytes(&self) -> u64 {
        (self.process_bytes / 8).clamp(*SEGMENT_BYTES.start(), *SEGMENT_BYTES.end())
    }
}
