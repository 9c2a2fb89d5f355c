//! Every limit of the wire, with its reason. A peer that exceeds one gets a named error.

use std::time::Duration;

/// Largest message that a server takes in, in one frame or in several; also the longest stdio line. The
/// stock server takes frames of 16 MiB, and so cannot be sent a large file: the stock client never cuts
/// a message into frames.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Largest message that a client takes in: what `fs/readFile` may answer, in base64.
pub const MAX_ANSWER_BYTES: usize = 768 << 20;
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
/// How long a finished process stays readable, unless configured otherwise: as the stock server. A
/// client that recovers within the session's time to live finds what ended meanwhile.
pub const CLOSED_RETENTION: Duration = Duration::from_secs(80);
/// How long a finished detached process stays readable: nobody need be there when it ends, and whoever
/// started it may be back only the next day.
pub const DETACHED_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a session outlives its connection, unless configured otherwise: as the stock server.
pub const SESSION_TTL: Duration = Duration::from_secs(80);
/// How often a websocket is pinged.
pub const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Processes of one session that may live at once, unless configured otherwise.
pub const MAX_PROCESSES: usize = 1024;
/// Finished processes that one session keeps readable; beyond it, the oldest is forgotten early.
pub const FINISHED_PROCESSES: usize = 8192;
/// Output and arguments of finished processes that one session keeps readable, all together.
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
/// Processes of other sessions that `process/list` lists.
pub const MAX_LISTED_PROCESSES: usize = 16_384;
/// Largest file that `fs/readFile` reads: as the stock server. Larger ones are read by blocks.
pub const MAX_READ_FILE_BYTES: u64 = 512 << 20;
/// Largest block of `fs/readBlock` and `fs/writeBlock`: as the stock server.
pub const MAX_BLOCK_BYTES: usize = 1 << 20;
/// Files that one connection may hold open: each is a descriptor of the server's.
pub const MAX_FILE_HANDLES: usize = 128;
/// Longest `handleId`: as the stock server.
pub const MAX_HANDLE_ID_BYTES: usize = 32;
/// File content that is read for one connection ahead of what its client takes. A larger file is
/// read alone.
pub const FILE_WINDOW_BYTES: usize = 4 << 20;
/// File content above the window, held for all connections together: one more large `fs/readFile`
/// is refused, and can be read by blocks.
pub const LARGE_FILES_BYTES: usize = 1 << 30;
/// Lists (directories, walks, searches, finds) that one connection has in the making or waiting to be
/// sent: one can take megabytes. Further ones wait.
pub const MAX_LISTS: usize = 4;
/// Operations of one session that may wait for a disk at the same time, beside its changes: each has a
/// thread. Further ones wait.
pub const MAX_BLOCKED_OPERATIONS: usize = 32;
/// Entries that `fs/readDirectory` lists: a longer list is an error, as with the stock server.
pub const MAX_DIRECTORY_ENTRIES: usize = 50_000;
/// Deepest `fs/walk`: as the stock server.
pub const MAX_WALK_DEPTH: usize = 64;
/// Directories that one `fs/walk` reads: as the stock server.
pub const MAX_WALK_DIRECTORIES: usize = 10_000;
/// Entries that one `fs/walk` looks at: as the stock server.
pub const MAX_WALK_ENTRIES: usize = 50_000;
/// Size of the answer to `fs/walk`, as the stock server counts it: the lengths of URIs and messages
/// and [`WALK_ITEM_BYTES`] for each.
pub const MAX_WALK_BYTES: usize = 4 << 20;
/// What one item of `fs/walk` counts beside its text.
pub const WALK_ITEM_BYTES: usize = 64;
/// Paths of one `fs/watchMissing`: as the stock server.
pub const MAX_MISSING_PATHS: usize = 64;
/// Watches of one connection by `fs/watch`.
pub const MAX_WATCHES: usize = 64;
/// Longest `watchId`: it is repeated with every change.
pub const MAX_WATCH_ID_BYTES: usize = 256;
/// Directories below one watch. The rest is said to overflow.
pub const MAX_WATCHED_DIRECTORIES: usize = 65_536;
/// Changes gathered for one client that does not take them; beyond it they overflow.
pub const MAX_GATHERED_CHANGES: usize = 16_384;
/// What the paths of those changes may take.
pub const MAX_GATHERED_BYTES: usize = 2 << 20;
/// How long changes are gathered before they are told: one change is then told once, not five times.
pub const WATCH_DEBOUNCE: Duration = Duration::from_millis(25);
/// Matches of `fs/search`, if the client does not say.
pub const DEFAULT_SEARCH_MATCHES: usize = 1000;
/// Most matches of one `fs/search`.
pub const MAX_SEARCH_MATCHES: usize = 10_000;
/// Most context lines on each side of a match.
pub const MAX_CONTEXT_LINES: usize = 100;
/// Longest pattern, glob or query.
pub const MAX_PATTERN_BYTES: usize = 16 << 10;
/// Longest line that `fs/search` shows; a longer one is cut.
pub const MAX_SEARCH_LINE_BYTES: usize = 4 << 10;
/// Text that one `fs/search` answers with; beyond it the result is truncated.
pub const MAX_SEARCH_BYTES: usize = 4 << 20;
/// Files and directories that one `fs/search` or `fs/find` looks at.
pub const MAX_SEARCH_ENTRIES: usize = 1_000_000;
/// Paths of `fs/find`, if the client does not say.
pub const DEFAULT_FIND_RESULTS: usize = 1000;
/// Most paths of one `fs/find`.
pub const MAX_FIND_RESULTS: usize = 10_000;
/// Roots of one `capabilityRoots/discoverV1`: as the stock server.
pub const MAX_DISCOVERY_ROOTS: usize = 128;
/// Largest file that discovery returns: as the stock server.
pub const MAX_DISCOVERY_FILE_BYTES: u64 = 1 << 20;
/// Text that discovery returns for one root: as the stock server.
pub const MAX_DISCOVERY_ROOT_BYTES: usize = 16 << 20;
/// Text that one discovery returns, of all roots together and as JSON has it: an answer is made in memory.
pub const MAX_DISCOVERY_BYTES: usize = 256 << 20;
/// Roots that one discovery reads at the same time: as the stock server.
pub const DISCOVERY_ROOTS_AT_ONCE: usize = 8;
/// How deep discovery looks below a root: as the stock server.
pub const DISCOVERY_DEPTH: usize = 6;
/// Directories that discovery reads below a root: as the stock server.
pub const MAX_DISCOVERY_DIRECTORIES: usize = 2000;
/// Entries that discovery looks at below a root: as the stock server.
pub const MAX_DISCOVERY_ENTRIES: usize = 20_000;
/// Installed plugins that `capabilities/discoverV2` lists; beyond it, a warning says that there are more.
pub const MAX_INSTALLED_PLUGINS: usize = 1024;
/// Largest configuration file that `environmentConfig/read` reads; a larger one fails the call.
pub const MAX_CONFIG_FILE_BYTES: u64 = 4 << 20;
/// Key paths of one `environmentConfig/read`, of each kind.
pub const MAX_CONFIG_PATHS: usize = 1024;
/// Longest `requestId` of `http/request`: it is repeated with every part of the body.
pub const MAX_HTTP_REQUEST_ID_BYTES: usize = 256;
/// Largest part of a streamed body: as the stock server.
pub const MAX_HTTP_DELTA_BYTES: usize = 1 << 20;
/// Largest body that `http/request` returns whole; a larger one is an error, and can be streamed.
pub const MAX_HTTP_BODY_BYTES: usize = 64 << 20;
/// Requests of one connection whose body is being streamed.
pub const MAX_HTTP_STREAMS: usize = 256;
/// Output of one process that its client has not acknowledged (grant `acknowledge`); beyond it the
/// process is paused. It is also what a client that was cut off can have missed.
pub const UNACKNOWLEDGED_BYTES: usize = 1 << 20;
/// How long after a disconnect what was not acknowledged is kept, and a process that wrote too much of
/// it is paused. Then it runs on, and the oldest output is dropped.
pub const UNACKNOWLEDGED_HOLD: Duration = Duration::from_secs(80);
