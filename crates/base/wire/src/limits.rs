//! Limits of the protocol, each with its reason. A peer that exceeds one gets a named error.

use std::time::Duration;

/// Maximum message that a server accepts, in one or more frames, and maximum stdio line. The stock
/// server accepts frames of 16 MiB and therefore no large files, because the stock client never
/// fragments a message.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Maximum message that a client accepts: the largest `fs/readFile` response in base64.
pub const MAX_RESPONSE_BYTES: usize = 768 << 20;
/// Maximum frame of an outgoing message. Larger messages are fragmented, so that clients with a 16
/// MiB frame limit can read large results.
pub const OUTGOING_FRAME_BYTES: usize = 8 << 20;
/// Maximum JSON values in one message, including the root but not object keys. Bounds the work of
/// decoding.
pub const MAX_JSON_VALUES: usize = 262_144;
/// Maximum nesting depth of one message. Bounds the decoder's stack.
pub const MAX_JSON_DEPTH: usize = 127;
/// Output bytes retained per process (`--retained-output-bytes`). The oldest are evicted first.
pub const RETAINED_OUTPUT_BYTES: usize = 1 << 20;
/// Output chunks retained per process. Bounds the bookkeeping of tiny writes.
pub const RETAINED_OUTPUT_CHUNKS: usize = 50_000;
/// Maximum output chunk: one read of an enlarged pipe.
pub const OUTPUT_CHUNK_BYTES: usize = 64 << 10;
/// Writes queued per process until the child reads its input.
pub const STDIN_QUEUE_CHUNKS: usize = 128;
/// Accepted write ids remembered per process, so that a retry is not written twice.
pub const REMEMBERED_WRITE_IDS: usize = 4096;
/// Maximum `writeId`. Thousands of them are remembered per process.
pub const MAX_WRITE_ID_BYTES: usize = 256;
/// Maximum `processId`. It is repeated in every output chunk.
pub const MAX_PROCESS_ID_BYTES: usize = 1024;
/// Maximum `scopeId` of a shell snapshot.
pub const MAX_SNAPSHOT_SCOPE_BYTES: usize = 256;
/// Retention of a finished process (`--process-retention`), as in the stock server. A client that
/// resumes within the session's time to live can still read processes that ended meanwhile.
pub const CLOSED_RETENTION: Duration = Duration::from_secs(80);
/// Retention of a finished detached process. No client need be connected when it ends, and its
/// owner may return only the next day.
pub const DETACHED_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// Time that a session outlives its connection (`--session-ttl`), as in the stock server. Then its
/// processes are killed.
pub const SESSION_TTL: Duration = Duration::from_secs(80);
/// Keepalive: interval of websocket pings.
pub const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum live processes per session (`--max-processes`). Further starts are refused.
pub const MAX_PROCESSES: usize = 1024;
/// Maximum finished processes retained per session. Above it the oldest is removed early.
pub const FINISHED_PROCESSES: usize = 8192;
/// Output and arguments of finished processes retained per session, in total.
pub const FINISHED_OUTPUT_BYTES: usize = 64 << 20;
/// Maximum pending requests per connection. Further ones are refused.
pub const MAX_REQUESTS_IN_FLIGHT: usize = 4096;
/// Responses queued for a client that does not read. Above it the server stops reading requests.
pub const SEND_BUFFER_BYTES: usize = 1 << 20;
/// Backpressure: output lag of an attached client at which its process is paused.
pub const FOLLOW_WINDOW_BYTES: usize = 256 << 10;
/// Maximum sessions per server, attached or detached. Further `initialize` requests are refused.
pub const MAX_SESSIONS: usize = 4096;
/// Maximum detached processes per server.
pub const MAX_DETACHED_PROCESSES: usize = 1024;
/// Maximum processes of other sessions in a `process/list` response.
pub const MAX_LISTED_PROCESSES: usize = 16_384;
/// Maximum file that `fs/readFile` reads, as in the stock server. Larger ones are read in blocks.
pub const MAX_READ_FILE_BYTES: u64 = 512 << 20;
/// Maximum block of `fs/readBlock` and `fs/writeBlock`, as in the stock server.
pub const MAX_BLOCK_BYTES: usize = 1 << 20;
/// Maximum open file handles per connection. Each is a descriptor of the server.
pub const MAX_FILE_HANDLES: usize = 128;
/// Maximum `handleId`, as in the stock server.
pub const MAX_HANDLE_ID_BYTES: usize = 32;
/// Flow control: file content read ahead per connection before its client has received it. A larger
/// file is read alone.
pub const FILE_WINDOW_BYTES: usize = 4 << 20;
/// File content above the window, for all connections together. Further large `fs/readFile`
/// requests are refused and can be read in blocks.
pub const LARGE_FILES_BYTES: usize = 1 << 30;
/// Lists (directories, walks, searches, finds) per connection that are being built or sent, because
/// one can take megabytes. Further ones wait.
pub const MAX_LISTS: usize = 4;
/// Operations per session that may block on a disk concurrently, in addition to its changes. Each
/// has a thread. Further ones wait.
pub const MAX_BLOCKED_OPERATIONS: usize = 32;
/// Maximum entries of `fs/readDirectory`, and of one page. A longer list that is not read by pages
/// is an error, as in the stock server.
pub const MAX_DIRECTORY_ENTRIES: usize = 50_000;
/// Maximum page of `fs/readDirectory`: the lengths of names, link targets and paths, plus
/// [`WALK_ITEM_BYTES`] for each entry. A fuller page ends early.
pub const MAX_PAGE_BYTES: usize = 4 << 20;
/// Maximum file name in a cursor of `fs/readDirectory`. Most file systems allow 255 bytes, FUSE
/// allows 1024.
pub const MAX_NAME_BYTES: usize = 1024;
/// Maximum depth of `fs/walk`, as in the stock server.
pub const MAX_WALK_DEPTH: usize = 64;
/// Maximum directories that one `fs/walk` reads, as in the stock server.
pub const MAX_WALK_DIRECTORIES: usize = 10_000;
/// Maximum entries that one `fs/walk` examines, as in the stock server.
pub const MAX_WALK_ENTRIES: usize = 50_000;
/// Maximum `fs/walk` response, counted like the stock server: the lengths of URIs and messages plus
/// [`WALK_ITEM_BYTES`] for each.
pub const MAX_WALK_BYTES: usize = 4 << 20;
/// Size of an `fs/walk` item in addition to its text.
pub const WALK_ITEM_BYTES: usize = 64;
/// Maximum paths of one `fs/watchMissing`, as in the stock server.
pub const MAX_MISSING_PATHS: usize = 64;
/// Maximum `fs/watch` watches per connection.
pub const MAX_WATCHES: usize = 64;
/// Maximum `watchId`. It is repeated with every change.
pub const MAX_WATCH_ID_BYTES: usize = 256;
/// Maximum `tunnelId` and `listenId`. They are repeated with every event.
pub const MAX_TUNNEL_ID_BYTES: usize = 64;
/// Maximum tunnels per session, open and opening. Each is a descriptor of the server.
pub const MAX_TUNNELS: usize = 1024;
/// Maximum listeners of `tunnel/listen` per session.
pub const MAX_TUNNEL_LISTENERS: usize = 64;
/// Maximum bytes of one `tunnel/data`.
pub const TUNNEL_CHUNK_BYTES: usize = 64 << 10;
/// Flow control: maximum unacknowledged data per tunnel and direction, where each `tunnel/data`
/// counts [`TUNNEL_EVENT_BYTES`] more than its bytes. The receiver closes a tunnel above it.
pub const TUNNEL_WINDOW_BYTES: usize = 1 << 20;
/// Size of a `tunnel/data` in addition to its bytes. Bounds the number of tiny ones.
pub const TUNNEL_EVENT_BYTES: usize = 128;
/// Flow control: unacknowledged data of all tunnels of a session in one direction, at which a tunnel
/// may have only [`TUNNEL_RESERVED_BYTES`] of its window.
pub const TUNNELS_SHARED_BYTES: usize = 64 << 20;
/// Unacknowledged data that each tunnel may have in any case, so that none waits for another.
pub const TUNNEL_RESERVED_BYTES: usize = 64 << 10;
/// Maximum memory of all tunnels of a session in one direction: the sum that the limits above allow,
/// and one more window, because a resumed session repeats its data in another order. The receiver
/// closes a tunnel above it.
pub const MAX_TUNNELS_BYTES: usize = 129 << 20;
/// Maximum `reason` of `tunnel/close`. A longer one is cut.
pub const MAX_TUNNEL_REASON_BYTES: usize = 512;
/// Maximum directories below one watch. Further ones are reported as an overflow.
pub const MAX_WATCHED_DIRECTORIES: usize = 65_536;
/// Maximum changes collected for a client that does not read them. Further ones are reported as an
/// overflow.
pub const MAX_GATHERED_CHANGES: usize = 16_384;
/// Maximum bytes of the paths of these changes.
pub const MAX_GATHERED_BYTES: usize = 2 << 20;
/// Debounce interval of watches, so that one change is reported once and not five times.
pub const WATCH_DEBOUNCE: Duration = Duration::from_millis(25);
/// Matches of `fs/search`, if the client does not set a limit.
pub const DEFAULT_SEARCH_MATCHES: usize = 1000;
/// Maximum matches of one `fs/search`.
pub const MAX_SEARCH_MATCHES: usize = 10_000;
/// Maximum context lines on each side of a match.
pub const MAX_CONTEXT_LINES: usize = 100;
/// Maximum pattern, glob or query.
pub const MAX_PATTERN_BYTES: usize = 16 << 10;
/// Maximum line in an `fs/search` result. Longer ones are truncated.
pub const MAX_SEARCH_LINE_BYTES: usize = 4 << 10;
/// Maximum text in an `fs/search` response. Above it the result is truncated.
pub const MAX_SEARCH_BYTES: usize = 4 << 20;
/// Maximum files and directories that one `fs/search` or `fs/find` examines.
pub const MAX_SEARCH_ENTRIES: usize = 1_000_000;
/// Paths of `fs/find`, if the client does not set a limit.
pub const DEFAULT_FIND_RESULTS: usize = 1000;
/// Maximum paths of one `fs/find`.
pub const MAX_FIND_RESULTS: usize = 10_000;
/// Maximum roots of one `capabilityRoots/discoverV1`, as in the stock server.
pub const MAX_DISCOVERY_ROOTS: usize = 128;
/// Maximum file that discovery returns, as in the stock server.
pub const MAX_DISCOVERY_FILE_BYTES: u64 = 1 << 20;
/// Maximum text that discovery returns for one root, as in the stock server.
pub const MAX_DISCOVERY_ROOT_BYTES: usize = 16 << 20;
/// Maximum text that one discovery returns for all roots, as JSON. The response is built in memory.
pub const MAX_DISCOVERY_BYTES: usize = 256 << 20;
/// Maximum roots that one discovery reads concurrently, as in the stock server.
pub const DISCOVERY_ROOTS_AT_ONCE: usize = 8;
/// Maximum depth of discovery below a root, as in the stock server.
pub const DISCOVERY_DEPTH: usize = 6;
/// Maximum directories that discovery reads below a root, as in the stock server.
pub const MAX_DISCOVERY_DIRECTORIES: usize = 2000;
/// Maximum entries that discovery examines below a root, as in the stock server.
pub const MAX_DISCOVERY_ENTRIES: usize = 20_000;
/// Maximum installed plugins in a `capabilities/discoverV2` response. A warning reports more.
pub const MAX_INSTALLED_PLUGINS: usize = 1024;
/// Maximum configuration file that `environmentConfig/read` reads. A larger one fails the call.
pub const MAX_CONFIG_FILE_BYTES: u64 = 4 << 20;
/// Maximum key paths of one `environmentConfig/read`, for each file.
pub const MAX_CONFIG_PATHS: usize = 1024;
/// Maximum `requestId` of `http/request`. It is repeated with every part of the body.
pub const MAX_HTTP_REQUEST_ID_BYTES: usize = 256;
/// Maximum part of a streamed body, as in the stock server.
pub const MAX_HTTP_DELTA_BYTES: usize = 1 << 20;
/// Maximum body that `http/request` returns whole. A larger one is an error and can be streamed.
pub const MAX_HTTP_BODY_BYTES: usize = 64 << 20;
/// Maximum streamed bodies per connection.
pub const MAX_HTTP_STREAMS: usize = 256;
/// Backpressure: unacknowledged output per process (extension `acknowledge`) at which the process
/// is paused. A client that loses its connection misses at most this much.
pub const UNACKNOWLEDGED_BYTES: usize = 1 << 20;
/// Retention of unacknowledged output after a disconnect, during which backpressure may pause the
/// process. Afterwards the process continues and the oldest output is evicted.
pub const UNACKNOWLEDGED_RETENTION: Duration = Duration::from_secs(80);
