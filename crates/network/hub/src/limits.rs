//! Limits of the hub, each with its reason.

use std::time::Duration;

use crate::{circuit::QueueLimits, rate_limit::RateRule};

/// Environments that one principal may own, however registered: more than a fleet needs, and few
/// enough that one principal cannot exhaust the store.
pub const ENVIRONMENTS_PER_PRINCIPAL: usize = 1024;

/// Pending authorizations of one principal: harnesses that connect at once. Each is used within
/// seconds or expires after a minute.
pub const AUTHORIZATIONS_PER_PRINCIPAL: usize = 1024;

/// Largest websocket message. Endpoints refuse larger ones, so nothing larger could be delivered.
pub const MAX_FRAME_BYTES: usize = 256 << 10;

/// Frame queue from one harness to the executor. A stock executor resets a stream after 128 unread
/// messages; the rest stays in the harness's socket.
pub const TO_EXECUTOR: QueueLimits = QueueLimits {
    frames: 512,
    bytes: 1 << 20,
};

/// Frame queue to one harness, before backpressure stops reading the executor's websocket. Reliable
/// endpoints have at most this much unacknowledged, so a slow one does not pause the others.
pub const TO_HARNESS: QueueLimits = QueueLimits {
    frames: 4096,
    bytes: 4 << 20,
};

/// Bytes buffered by a websocket writer beyond the kernel's buffer. The rest stays in its circuit,
/// where it is counted; a larger buffer does not raise throughput.
pub const WRITE_AHEAD_BYTES: usize = 256 << 10;

/// Frames moved in one direction before a websocket task flushes and serves the other direction.
pub const ROUND_FRAMES: usize = 128;

/// Frames of one harness before the next harness is served.
pub const SHARE_FRAMES: usize = 16;

/// Rounds of a websocket task before it yields.
pub const ROUNDS: usize = 8;

/// Time after which a harness that reads nothing while frames are queued is closed. Also the
/// interval at which an executor websocket under backpressure is checked for progress.
pub const STALL: Duration = Duration::from_secs(30);

/// Progress required within [`STALL`] from an executor websocket under backpressure; otherwise the
/// harness that blocks it is closed. Pings and pongs queue behind frames, up to ten megabytes of
/// them in the buffers of both kernels. Below this rate, the executor would consider the relay
/// dead, and all its harnesses would lose their streams.
pub const STALL_BYTES: usize = 8 << 20;

/// Uninterrupted reading time after which an executor no longer counts as blocked.
pub const CAUGHT_UP: Duration = Duration::from_secs(1);

/// Time limit for the closing handshake of a websocket.
pub const CLOSE: Duration = Duration::from_secs(2);

/// Stream ids that one harness websocket may use at a time. Harnesses open one stream per
/// websocket.
pub const STREAMS_PER_HARNESS: usize = 16;

/// Handshakes of one harness websocket without an answer.
pub const UNANSWERED_HANDSHAKES: usize = 4;

/// Handshakes of one harness, on all its websockets, that the executor may reset within
/// [`REFUSAL`]. The last one closes the websocket and blocks further handshakes of that harness.
pub const FAILED_HANDSHAKES: usize = 4;

/// How long a harness is blocked after failed handshakes.
pub const REFUSAL: Duration = Duration::from_secs(60);

/// Failed handshakes of all harnesses after which an executor refuses all of them for
/// [`EXECUTOR_COOLDOWN`].
pub const EXECUTOR_FAILURES: usize = 8;

/// See [`EXECUTOR_FAILURES`].
pub const EXECUTOR_COOLDOWN: Duration = Duration::from_secs(10);

/// Failed or unanswered handshakes of one harness, on all its websockets: a single harness must not
/// trigger the executor's cooldown.
pub const HANDSHAKES_AT_STAKE: usize = EXECUTOR_FAILURES - 1;

/// Longest time an executor takes to answer a handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// Burst of handshakes per environment: twice what an executor validates concurrently.
pub const HANDSHAKE_BURST: u32 = 64;

/// Interval after which an environment accepts another handshake. All 128 streams of an executor
/// return within seconds after a lost websocket, yet handshakes alone cannot saturate it.
pub const HANDSHAKE_INTERVAL: Duration = Duration::from_millis(32);

/// Harness websockets connected to one executor at a time. An executor accepts 128 streams.
pub const HARNESSES_PER_EXECUTOR: usize = 512;

/// New circuits queued for an executor's task.
pub const PENDING_CIRCUITS: usize = 64;

/// Longest lifetime of an invite. Also bounds how long marks of redeemed ones are kept.
pub const INVITE_LIFETIME: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Attempts to redeem an invite from one address at once, and per second after that. An invite has
/// 256 random bits; this bounds the work that strangers cause.
pub const INVITE_ATTEMPTS: RateRule = RateRule {
    burst: 20,
    per_second: 1,
};

/// Addresses with a separate count of attempts.
pub const INVITE_ADDRESSES: usize = 4096;

/// Lifetime of a harness URL. Harnesses use it immediately; their budget is ten seconds.
pub const HARNESS_URL_LIFETIME: Duration = Duration::from_secs(60);

/// Open websockets. Each uses a file descriptor and at most 32 KiB while idle.
pub const MAX_CONNECTIONS: usize = 16 << 10;

/// Open connections that are not websockets. Above this, the oldest one of the busiest address is
/// closed.
pub const MAX_PENDING_CONNECTIONS: usize = 4 << 10;

/// The same limit per address. A reverse proxy is one address for all its clients.
pub const MAX_PENDING_PER_ADDRESS: usize = 1 << 10;

/// Requests in progress, including those of disconnected clients: a few kilobytes each. Further
/// requests wait.
pub const REQUESTS: usize = 4096;

/// Total bytes of large request bodies in progress. Bodies up to four kilobytes, such as those of
/// the protocol, are not counted.
pub const BODY_BYTES: usize = 16 << 20;

/// Time limit of a graceful shutdown.
pub const STOP: Duration = Duration::from_secs(5);
