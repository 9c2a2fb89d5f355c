//! Limits of the hub, each with its reason.

use std::time::Duration;

use crate::circuit::Room;

/// Environments that one principal may own, in whichever way they were registered: more than a fleet
/// has, and few enough that one principal does not use up what the hub keeps.
pub const ENVIRONMENTS_PER_PRINCIPAL: usize = 1024;

/// Authorizations of one principal that wait for their use: as many harnesses as come at once. Each
/// is used within seconds, or lives for a minute.
pub const AUTHORIZATIONS_PER_PRINCIPAL: usize = 1024;

/// Largest websocket message taken from anyone: endpoints refuse more than this themselves, so
/// nothing larger could be delivered.
pub const MAX_FRAME_BYTES: usize = 256 << 10;

/// What one harness may have on its way to the executor. A stock executor takes 128 messages per
/// stream before it resets it; the rest waits in the harness's own socket.
pub const TO_EXECUTOR: Room = Room {
    frames: 512,
    bytes: 1 << 20,
};

/// What may wait for one harness before the executor's socket is not read any more. Reliable
/// endpoints have at most this much unacknowledged, so one that is slow does not pause the others.
pub const TO_HARNESS: Room = Room {
    frames: 4096,
    bytes: 4 << 20,
};

/// What a socket's writer holds beyond the kernel's own buffer. The rest stays in its circuit, where
/// it is counted; more than this gains no throughput.
pub const WRITE_AHEAD_BYTES: usize = 256 << 10;

/// Frames moved one way before a socket's task looks the other way, and flushes.
pub const TURN_FRAMES: usize = 128;

/// Frames of one harness before it is the next one's turn.
pub const SHARE_FRAMES: usize = 16;

/// Turns of a socket's task before others run.
pub const TURNS: usize = 8;

/// How long a harness may take nothing at all while frames wait for it. Also how long harnesses may
/// hold up an executor's socket before it is asked how much went through.
pub const STALL: Duration = Duration::from_secs(30);

/// What must be read within [`STALL`] from an executor that is held up; if it is less, the harness
/// that holds it up is closed. Pings and pongs lie in the socket behind frames, up to ten megabytes
/// of them in the buffers of both systems: an executor that is read more slowly than this would
/// hold the relay for dead, and all its harnesses would lose their streams for the one.
pub const STALL_BYTES: usize = 8 << 20;

/// How long an executor must be read without a break to count as not held up any more.
pub const CAUGHT_UP: Duration = Duration::from_secs(1);

/// How long a socket that was told to close may take for it.
pub const CLOSE: Duration = Duration::from_secs(2);

/// Stream ids that one harness socket may own at a time. Harnesses open one stream per socket.
pub const STREAMS_PER_HARNESS: usize = 16;

/// Handshakes of one harness socket that the executor has not answered yet.
pub const UNANSWERED_HANDSHAKES: usize = 4;

/// Handshakes of one harness, on all of its sockets, that the executor answered with a reset within
/// [`REFUSAL`]. The socket is closed at the last one, and no other gets a handshake through.
pub const FAILED_HANDSHAKES: usize = 4;

/// How long a harness is refused whose handshakes failed.
pub const REFUSAL: Duration = Duration::from_secs(60);

/// Failed handshakes of all harnesses at which an executor refuses everybody, for
/// [`EXECUTOR_COOLDOWN`].
pub const EXECUTOR_FAILURES: usize = 8;

/// See [`EXECUTOR_FAILURES`].
pub const EXECUTOR_COOLDOWN: Duration = Duration::from_secs(10);

/// Handshakes of one harness, on all of its sockets, that failed or may yet fail: one harness alone
/// does not make an executor refuse everybody.
pub const HANDSHAKES_AT_STAKE: usize = EXECUTOR_FAILURES - 1;

/// How long an executor takes to answer a handshake, at the most.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// Handshakes that an environment takes at once: as many as an executor validates at a time, twice.
pub const HANDSHAKE_BURST: u32 = 64;

/// Time in which an environment earns another handshake. All 128 streams of an executor are back
/// within seconds after its socket was lost, and nobody keeps it busy with handshakes alone.
pub const HANDSHAKE_INTERVAL: Duration = Duration::from_millis(32);

/// Harness sockets connected to one executor at a time. An executor admits 128 streams.
pub const HARNESSES_PER_EXECUTOR: usize = 512;

/// Circuits on their way to an executor's task.
pub const PENDING_CIRCUITS: usize = 64;

/// How long a harness URL may be used. The harness opens it at once; its budget is ten seconds.
pub const HARNESS_URL_LIFETIME: Duration = Duration::from_secs(60);

/// Websockets open at once. A descriptor and at most 32 KiB each while idle.
pub const MAX_CONNECTIONS: usize = 16 << 10;

/// Connections open at once that are not websockets. One more closes the oldest of whoever has most.
pub const MAX_PENDING_CONNECTIONS: usize = 4 << 10;

/// The same of one address. A proxy before the hub is one address for all clients.
pub const MAX_PENDING_PER_ADDRESS: usize = 1 << 10;

/// Requests that are being done, those whose client hung up included: a few kilobytes each. Beyond,
/// whoever asks waits for a place.
pub const REQUESTS: usize = 4096;

/// Bytes of all large request bodies together, while they are read and answered. Small ones, such as
/// those of the protocol, are not counted: four kilobytes for each connection at the most.
pub const BODY_BYTES: usize = 16 << 20;

/// How long sockets have to say goodbye when the hub stops.
pub const STOP: Duration = Duration::from_secs(5);
