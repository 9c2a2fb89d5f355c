//! Anything that a rendezvous could send.

use bytes::Bytes;

use crate::{frame::Frame, route::Route};

/// Takes bytes as a frame.
///
/// # Panics
/// When decoder, encoder and route disagree.
pub fn relay_frame(bytes: &[u8]) {
    let route = Route::peek(bytes);
    let Ok(frame) = Frame::decode(Bytes::copy_from_slice(bytes)) else {
        return;
    };
    let Ok(route) = route else {
        panic!("a valid frame has a route");
    };
    assert_eq!(route.stream_id, frame.stream_id.as_str());
    assert_eq!(route.kind, frame.body.kind());
    let again = frame.encode();
    assert_eq!(
        Frame::decode(again),
        Ok(frame),
        "an encoding means the same"
    );
}
