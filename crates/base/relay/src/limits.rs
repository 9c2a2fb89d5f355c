//! Every limit of the relay, with its reason. What a stock endpoint checks has the stock value.

use std::time::Duration;

/// Longest plaintext of one record. With tag and frame it stays below the 65 535 bytes of a NoiseState
/// message; stock receivers refuse longer ones.
pub const RECORD_BYTES: usize = 60 << 10;
/// Length of the tag that seals a record: AES-GCM's.
pub const TAG_BYTES: usize = 16;
/// Longest application message: as the stock endpoints.
pub const MESSAGE_BYTES: usize = 64 << 20;
/// Length of the prefix in front of each message: a big-endian `u32`.
pub const PREFIX_BYTES: usize = 4;
/// Most records that one message needs, prefix included. A frame that claims more is refused.
pub const MAX_SEGMENTS: u32 = 1093;
/// Longest websocket message, and so longest frame, that an endpoint takes in: as the stock endpoints.
pub const FRAME_BYTES: usize = 256 << 10;
/// Longest stream id. The stock harness sends 36 bytes; it is kept per stream and repeated per frame.
pub const STREAM_ID_BYTES: usize = 256;
/// Longest authorization of a harness, which travels in the first handshake message.
pub const AUTHORIZATION_BYTES: usize = 4096;
/// The last usable record number. Numbers are nonces, so they never wrap.
pub const LAST_SEQ: u32 = u32::MAX - 1;

/// Records that may be ahead of the next expected one: as the stock endpoints.
pub const REORDER_RECORDS: u32 = 64;
/// Ciphertext that may wait for its turn: as the stock endpoints.
pub const REORDER_BYTES: usize = 1 << 20;
/// Complete messages of a plain stream that the application has not taken; one more ends the stream.
pub const PLAIN_QUEUE_MESSAGES: usize = 128;
/// Complete messages of a plain stream above which a driver that can stops reading. One frame may
/// complete as many as [`REORDER_RECORDS`] more.
pub const PLAIN_PAUSE_MESSAGES: usize = 32;

/// Records of a reliable stream that may be unacknowledged: bounds what is kept for sending again.
pub const WINDOW_RECORDS: usize = 128;
/// Ciphertext of a reliable stream that may be unacknowledged. Enough for 200 MB/s over 20 ms.
pub const WINDOW_BYTES: usize = 4 << 20;
/// Messages of a reliable stream that may wait for the application before acknowledgements are
/// withheld; those of a plain one before a driver that can stops reading. With the window it bounds what an application that does not read costs.
pub const RECEIVE_QUEUE_BYTES: usize = 1 << 20;
/// Complete messages of a reliable stream that may wait, however small. Records beyond are dropped,
/// and sent again later.
pub const RECEIVE_QUEUE_MESSAGES: usize = 1 << 16;
/// Records that are acknowledged by a frame of their own when nothing else is sent.
pub const ACK_RECORDS: u32 = 8;
/// Ciphertext that is acknowledged by a frame of its own when nothing else is sent.
pub const ACK_BYTES: usize = 256 << 10;
/// How long an acknowledgement waits for a frame to ride on. An eighth of the shortest
/// retransmission time, so that it never causes one.
pub const ACK_DELAY: Duration = Duration::from_millis(25);
/// Shortest time after which an unanswered record is sent again.
pub const RETRANSMIT_MIN: Duration = Duration::from_millis(200);
/// Longest time after which an unanswered record is sent again.
pub const RETRANSMIT_MAX: Duration = Duration::from_secs(5);
/// The retransmission time before any round trip was measured: RFC 6298, section 2.
pub const RETRANSMIT_FIRST: Duration = Duration::from_secs(1);
/// How long a connected reliable stream sends nothing before it sends a heartbeat.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// How long the peer of a connected reliable stream may be silent: three heartbeats.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(30);
