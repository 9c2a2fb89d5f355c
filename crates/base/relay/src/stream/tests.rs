//! Streams alone against crafted frames, and in pairs over faulty links.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{DeliveryMode, RelayStream};
use crate::{
    frame::{FrameBody, RelayFrame, SealedRecord, StreamId},
    handshake::{NoiseChannel, RecordSealer},
};

mod faulty_link;
mod plain;
mod reliable;

#[expect(
    clippy::disallowed_methods,
    reason = "fixed origin of the tests' clock"
)]
fn epoch() -> Instant {
    static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
    *EPOCH
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn id() -> StreamId {
    StreamId::new("11111111-2222-4333-8444-555555555555").unwrap()
}

/// Returns both ends of a stream.
fn stream_pair(delivery: DeliveryMode) -> (RelayStream, RelayStream) {
    let (a, b) = NoiseChannel::pair();
    let end = |channel| RelayStream::new(id(), channel, delivery, epoch());
    (end(a), end(b))
}

/// Returns one end and the sealer of its peer.
fn stream_and_sealer(delivery: DeliveryMode) -> (RelayStream, RecordSealer) {
    let (a, b) = NoiseChannel::pair();
    (RelayStream::new(id(), a, delivery, epoch()), b.sealer)
}

/// Seals the next record.
fn seal(sealer: &mut RecordSealer, plaintext: &[u8]) -> SealedRecord {
    let seq = sealer.next_seq();
    let mut buffer = plaintext.to_vec();
    sealer.seal(&mut buffer, 0).unwrap();
    SealedRecord {
        seq,
        segment_index: 0,
        segment_count: 1,
        payload: buffer.into(),
    }
}

fn frame(data: SealedRecord) -> RelayFrame {
    RelayFrame::new(id(), FrameBody::Data(data))
}

/// Returns a message after its prefix.
fn with_prefix(message: &[u8]) -> Vec<u8> {
    let mut with_prefix = u32::try_from(message.len()).unwrap().to_be_bytes().to_vec();
    with_prefix.extend_from_slice(message);
    with_prefix
}

fn push(stream: &mut RelayStream, message: &[u8]) {
    stream
        .push(|buffer| buffer.extend_from_slice(message))
        .unwrap();
}

/// Returns all frames that a stream has ready.
fn frames(stream: &mut RelayStream, now: Instant) -> Vec<RelayFrame> {
    std::iter::from_fn(|| stream.poll_frame(now))
        .map(|bytes| RelayFrame::decode(bytes).unwrap())
        .collect()
}

/// Returns all messages that a stream has ready.
fn messages(stream: &mut RelayStream) -> Vec<Bytes> {
    std::iter::from_fn(|| stream.poll_message()).collect()
}

fn data(frame: &RelayFrame) -> &SealedRecord {
    let FrameBody::Data(data) = &frame.body else {
        panic!("expected a record: {frame:?}");
    };
    data
}
