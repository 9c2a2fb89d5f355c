//! Limits of the relay, each with its reason. Limits that stock endpoints check have the stock
//! value.

use std::time::Duration;

/// Maximum plaintext of one record. With tag and frame it stays below the 65 535 bytes of a Noise
/// message. Stock receivers refuse longer records.
pub const RECORD_BYTES: usize = 60 << 10;
/// Length of the AES-GCM tag of a record.
pub const TAG_BYTES: usize = 16;
/// Maximum application message, as in the stock endpoints.
pub const MESSAGE_BYTES: usize = 64 << 20;
/// Length of the big-endian `u32` prefix before each message.
pub const PREFIX_BYTES: usize = 4;
/// Maximum records of one message, prefix included. A frame that claims more is refused.
pub const MAX_SEGMENTS: u32 = 1093;
/// Maximum websocket message, and so maximum frame, that an endpoint accepts, as in the stock
/// endpoints.
pub const FRAME_BYTES: usize = 256 << 10;
/// Maximum stream id. The stock harness sends 36 bytes. The id is stored per stream and repeated
/// per frame.
pub const STREAM_ID_BYTES: usize = 256;
/// Maximum authorization of a harness, which is part of the first handshake message.
pub const AUTHORIZATION_BYTES: usize = 4096;
/// Last usable record number. Numbers are nonces, so they never wrap.
pub const LAST_SEQ: u32 = u32::MAX - 1;

/// Maximum distance of a record from the next expected one, as in the stock endpoints.
pub const REORDER_RECORDS: u32 = 64;
/// Maximum ciphertext in the reorder buffer, as in the stock endpoints.
pub const REORDER_BYTES: usize = 1 << 20;
/// Maximum unread messages of a plain stream. One more ends the stream.
pub const PLAIN_QUEUE_MESSAGES: usize = 128;
/// Unread messages of a plain stream at which a driver pauses reading, if it can. One frame may
/// complete up to [`REORDER_RECORDS`] more.
pub const PLAIN_PAUSE_MESSAGES: usize = 32;

/// Maximum unacknowledged records of a reliable stream. Bounds the retransmission buffer.
pub const WINDOW_RECORDS: usize = 128;
/// Maximum unacknowledged ciphertext of a reliable stream. Enough for 200 MB/s over 20 ms.
pub const WINDOW_BYTES: usize = 4 << 20;
/// Unread message bytes at which a reliable stream withholds acknowledgements, and at which the
/// driver of a plain stream pauses reading. Together with the send window it bounds the memory that
/// a slow reader costs.
pub const RECEIVE_QUEUE_BYTES: usize = 1 << 20;
/// Maximum unread messages of a reliable stream, regardless of their size. Further records are
/// dropped and retransmitted later.
pub const RECEIVE_QUEUE_MESSAGES: usize = 1 << 16;
/// Unacknowledged records that trigger a separate acknowledgement frame.
pub const ACK_RECORDS: u32 = 8;
/// Unacknowledged ciphertext that triggers a separate acknowledgement frame.
pub const ACK_BYTES: usize = 256 << 10;
/// Delay of an acknowledgement that waits to be piggybacked on another frame. An eighth of the
/// minimum retransmission timeout, so that the delay never causes a retransmission.
pub const ACK_DELAY: Duration = Duration::from_millis(25);
/// Minimum retransmission timeout.
pub const RETRANSMIT_MIN: Duration = Duration::from_millis(200);
/// Maximum retransmission timeout.
pub const RETRANSMIT_MAX: Duration = Duration::from_secs(5);
/// Retransmission timeout before the first round-trip sample (RFC 6298, section 2).
pub const RETRANSMIT_FIRST: Duration = Duration::from_secs(1);
/// Idle time after which a connected reliable stream sends a heartbeat.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Keepalive timeout: silence of the peer that ends a connected reliable stream. Three heartbeats.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(30);
