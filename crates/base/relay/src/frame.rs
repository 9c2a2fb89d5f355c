//! Relay frames: the envelope in which everything travels on the rendezvous websocket.
//!
//! Invariant: a [`Frame`] is valid; what is not, is refused by [`Frame::decode`]. Payloads are slices
//! of the message they came in. Not here: what a relay reads of a frame ([`crate::route`]).

mod body;
mod decode;
mod encode;
#[rustfmt::skip]
#[expect(unreachable_pub, reason = "generated from the schema")]
mod proto;
mod stream_id;
#[cfg(test)]
mod tests;

pub(crate) use body::segments_are_possible;
pub use body::{
    Body, Data, Frame, NOTHING_RECEIVED, RESET_CLOSED, RESET_PROTOCOL_ERROR, Trace, VERSION,
};
pub use decode::FrameError;
pub(crate) use encode::DataHeader;
pub(crate) use stream_id::check as check_stream_id;
pub use stream_id::{StreamId, StreamIdError};
