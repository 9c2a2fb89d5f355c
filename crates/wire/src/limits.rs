//! Every limit of the wire, with its reason. A peer that exceeds one gets a named error.

use std::time::Duration;

/// Largest websocket frame taken in: what the stock peers accept.
pub const MAX_FRAME_BYTES: usize = 16 << 20;
/// Largest message taken in, all its frames together; also the longest stdio line.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Outgoing messages are cut into frames of at most this size, so that clients with a 16 MiB frame
/// limit can read large results.
pub const OUTGOING_FRAME_BYTES: usize = 8 << 20;
/// JSON values in one message, the root included and object keys not: bounds the work of decoding.
pub const MAX_JSON_VALUES: usize = 262_144;
/// Nesting depth of one message: bounds the decoder's stack.
pub const MAX_JSON_DEPTH: usize = 127;
/// Bytes of output that one process retains for readers, unless configured otherwise.
pub const RETAINED_OUTPUT_BYTES: usize = 1 << 20;
/// Chunks of output that one process retains: bounds the bookkeeping of tiny writes.
pub const RETAINED_OUTPUT_CHUNKS: usize = 50_000;
/// Largest output chunk: one read of an enlarged pipe.
pub const OUTPUT_CHUNK_BYTES: usize = 64 << 10;
/// Writes that wait for a child to read its input, per process.
pub const STDIN_QUEUE_CHUNKS: usize = 128;
/// Accepted write ids that are remembered per process, so that a retry is not written twice.
pub const REMEMBERED_WRITE_IDS: usize = 4096;
/// Longest `writeId`: four thousand of them are remembered per process.
pub const MAX_WRITE_ID_BYTES: usize = 256;
/// Longest `processId`: it is repeated in every chunk of output.
pub const MAX_PROCESS_ID_BYTES: usize = 1024;
/// Longest `scopeId` of a shell snapshot.
pub const MAX_SNAPSHOT_SCOPE_BYTES: usize = 256;
/// How long a finished process stays readable.
pub const CLOSED_RETENTION: Duration = Duration::from_secs(30);
/// How long a session outlives its connection, unless configured otherwise.
pub const SESSION_TTL: Duration = Duration::from_secs(30);
/// How often a websocket is pinged.
pub const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Processes of one session that may live at once, unless configured otherwise.
pub const MAX_PROCESSES: usize = 1024;
/// Finished processes that one session keeps readable; beyond it, the oldest is forgotten early.
pub const FINISHED_PROCESSES: usize = 8192;
/// Output of finished processes that one session keeps readable, all together.
pub const FINISHED_OUTPUT_BYTES: usize = 64 << 20;
/// Requests of one connection that may be unanswered; one more is refused.
pub const MAX_REQUESTS_IN_FLIGHT: usize = 4096;
/// Answers queued for a client that does not read them; above it, its requests are not read either.
pub const OUTBOX_BYTES: usize = 1 << 20;
/// Output that an attached client may lag behind before its process is paused.
pub const FOLLOW_WINDOW_BYTES: usize = 256 << 10;
/// Sessions on one server, attached or detached; one more `initialize` is refused.
pub const MAX_SESSIONS: usize = 4096;
/// Detached processes on one server.
pub const MAX_DETACHED_PROCESSES: usize = 1024;
