//! Plain streams: the behaviour of stock endpoints, case by case.

use super::*;
use crate::{
    handshake::RecordOpenError,
    limits::{MESSAGE_BYTES, RECORD_BYTES, TAG_BYTES},
    stream::{RelayStreamError, StreamPushError},
};

fn expect_error(stream: &mut RelayStream, data: SealedRecord, expected: RelayStreamError) {
    assert_eq!(stream.handle_frame(frame(data), epoch()), Err(expected));
    // After the end every call returns the error.
    let heartbeat = RelayFrame::new(id(), FrameBody::Heartbeat);
    assert_eq!(stream.handle_frame(heartbeat, epoch()), Err(expected));
    assert_eq!(stream.handle_timeout(epoch()), Err(expected));
    assert_eq!(stream.failed, Some(expected));
    assert_eq!(stream.poll_timeout(), Some(epoch()));
    push(stream, b"too late");
    assert_eq!(stream.poll_frame(epoch()), None);
}

#[test]
fn each_message_starts_a_record_of_at_most_60_kib() {
    let (mut a, _) = stream_pair(DeliveryMode::Plain);
    push(&mut a, b"one");
    push(&mut a, &vec![7; 2 * RECORD_BYTES]);
    push(&mut a, b"two");
    assert_eq!(a.buffered(), 3 * 4 + 6 + 2 * RECORD_BYTES);
    let sent = frames(&mut a, epoch());
    let lengths: Vec<_> = sent
        .iter()
        .map(|frame| {
            assert_eq!((frame.ack, frame.ack_bits), (0, 0));
            assert!(frame.is_plain());
            (data(frame).seq, data(frame).payload.len() - TAG_BYTES)
        })
        .collect();
    assert_eq!(
        lengths,
        [(0, 7), (1, RECORD_BYTES), (2, RECORD_BYTES), (3, 4), (4, 7)]
    );
    assert_eq!(a.buffered(), 0);
    assert_eq!(a.poll_timeout(), None);
}

#[test]
fn messages_are_delivered_unchanged() {
    let (mut a, mut b) = stream_pair(DeliveryMode::Plain);
    let sent: Vec<Vec<u8>> = [1, 3, 61_436, 61_437, 200_000]
        .map(|len| vec![9; len])
        .into();
    for message in &sent {
        push(&mut a, message);
    }
    for frame in frames(&mut a, epoch()) {
        b.handle_frame(frame, epoch()).unwrap();
    }
    assert_eq!(messages(&mut b), sent);
    assert_eq!(b.poll_frame(epoch()), None, "nothing is acknowledged");
}

#[test]
fn messages_may_be_split_across_records_anywhere() {
    let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Plain);
    let mut bytes = with_prefix(b"first");
    bytes.extend(with_prefix(b"second, longer"));
    bytes.extend(with_prefix(b"3"));
    // Whole, split in a prefix, byte by byte, and with empty records.
    for slice in [
        &bytes[..11],
        &bytes[11..12],
        &[],
        &bytes[12..20],
        &bytes[20..29],
        &bytes[29..],
    ] {
        let data = seal(&mut sealer, slice);
        stream.handle_frame(frame(data), epoch()).unwrap();
    }
    assert_eq!(
        messages(&mut stream),
        [&b"first"[..], b"second, longer", b"3"]
    );
}

#[test]
fn records_are_reordered_and_the_first_copy_wins() {
    let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Plain);
    let records: Vec<_> = (0..4u8)
        .map(|n| seal(&mut sealer, &with_prefix(&[n])))
        .collect();
    let mut forged = records[2].clone();
    forged.payload = vec![0; 40].into();
    for data in [&records[2], &forged, &records[3], &records[0], &forged] {
        stream.handle_frame(frame(data.clone()), epoch()).unwrap();
    }
    assert_eq!(messages(&mut stream), [[0]].map(Vec::from));
    stream
        .handle_frame(frame(records[1].clone()), epoch())
        .unwrap();
    assert_eq!(messages(&mut stream), [[1], [2], [3]].map(Vec::from));
    // Records with a delivered number are not even opened.
    stream.handle_frame(frame(forged), epoch()).unwrap();
    assert_eq!(messages(&mut stream), [] as [Bytes; 0]);
}

#[test]
fn record_64_ahead_is_buffered_and_65_ahead_ends_the_stream() {
    for (ahead, ends) in [(64, false), (65, true)] {
        let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Plain);
        sealer.skip_to(ahead);
        let data = seal(&mut sealer, &with_prefix(b"x"));
        if ends {
            expect_error(
                &mut stream,
                data,
                RelayStreamError::OutOfWindow { seq: 65, next: 0 },
            );
        } else {
            stream.handle_frame(frame(data), epoch()).unwrap();
        }
    }
}

#[test]
fn reorder_buffer_holds_at_most_one_mebibyte() {
    let full = vec![0; 65_536 - TAG_BYTES];
    for (last, ends) in [(65_536, false), (65_537, true)] {
        let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Plain);
        sealer.skip_to(1);
        for _ in 0..15 {
            let mut data = seal(&mut sealer, b"");
            // Lengths are checked when the record is opened.
            data.payload = full.clone().into_iter().chain([0; TAG_BYTES]).collect();
            stream.handle_frame(frame(data), epoch()).unwrap();
        }
        let mut data = seal(&mut sealer, b"");
        data.payload = vec![0; last].into();
        if ends {
            expect_error(&mut stream, data, RelayStreamError::ReorderFull { next: 0 });
        } else {
            stream.handle_frame(frame(data), epoch()).unwrap();
        }
    }
}

#[test]
fn tampered_record_ends_the_stream() {
    for flip in [0, 5, 20] {
        let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Plain);
        let mut data = seal(&mut sealer, &with_prefix(b"x"));
        let mut bytes = data.payload.to_vec();
        bytes[flip] ^= 1;
        data.payload = bytes.into();
        expect_error(&mut stream, data, RecordOpenError::Forged(0).into());
    }
    // The number is the nonce, so a record under another number is not authentic.
    let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Plain);
    sealer.skip_to(1);
    let mut data = seal(&mut sealer, &with_prefix(b"x"));
    data.seq = 0;
    expect_error(&mut stream, data, RecordOpenError::Forged(0).into());
}

#[test]
fn record_of_invalid_length_ends_the_stream() {
    for (len, error) in [
        (TAG_BYTES - 1, RecordOpenError::TooShort(TAG_BYTES - 1)),
        (
            RECORD_BYTES + TAG_BYTES + 1,
            RecordOpenError::TooLong(RECORD_BYTES + 1),
        ),
    ] {
        let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Plain);
        let mut data = seal(&mut sealer, b"");
        data.payload = vec![0; len].into();
        expect_error(&mut stream, data, error.into());
    }
}

#[test]
fn invalid_message_length_ends_the_stream() {
    for (len, expected) in [
        (0u32, RelayStreamError::EmptyMessage),
        (
            (64 << 20) + 1,
            RelayStreamError::MessageTooLong(MESSAGE_BYTES + 1),
        ),
    ] {
        let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Plain);
        let data = seal(&mut sealer, &len.to_be_bytes());
        expect_error(&mut stream, data, expected);
    }
    let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Plain);
    let data = seal(&mut sealer, &(64u32 << 20).to_be_bytes());
    stream.handle_frame(frame(data), epoch()).unwrap();
}

#[test]
fn unread_message_129_ends_a_plain_stream() {
    let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Plain);
    for _ in 0..128 {
        let data = seal(&mut sealer, &with_prefix(b"x"));
        stream.handle_frame(frame(data), epoch()).unwrap();
    }
    let data = seal(&mut sealer, &with_prefix(b"x"));
    expect_error(&mut stream, data, RelayStreamError::QueueFull);
}

#[test]
fn segments_resets_and_handshakes_end_a_plain_stream() {
    let (mut stream, mut sealer) = stream_and_sealer(DeliveryMode::Plain);
    for body in [
        FrameBody::Ack,
        FrameBody::Heartbeat,
        FrameBody::Resume { next_seq: 9 },
    ] {
        let mut frame = RelayFrame::new(id(), body);
        (frame.ack, frame.ack_bits) = (77, 88);
        stream.handle_frame(frame, epoch()).unwrap();
    }
    let mut foreign = RelayFrame::new(
        StreamId::new("other").unwrap(),
        FrameBody::Reset {
            reason: "x".to_owned(),
        },
    );
    stream.handle_frame(foreign.clone(), epoch()).unwrap();
    foreign.stream_id = id();
    assert_eq!(
        stream.handle_frame(foreign, epoch()),
        Err(RelayStreamError::Reset)
    );

    let (mut stream, _) = stream_and_sealer(DeliveryMode::Plain);
    let handshake = RelayFrame::new(id(), FrameBody::Handshake(Bytes::from_static(b"x")));
    assert_eq!(
        stream.handle_frame(handshake, epoch()),
        Err(RelayStreamError::Handshake)
    );

    let (mut stream, _) = stream_and_sealer(DeliveryMode::Plain);
    let mut data = seal(&mut sealer, b"");
    data.segment_count = 2;
    expect_error(&mut stream, data, RelayStreamError::Segments(0));
}

#[test]
fn stream_ends_after_the_last_record_number() {
    let (mut channel, _) = NoiseChannel::pair();
    channel.sealer.skip_to(u32::MAX - 1);
    let mut stream = RelayStream::new(id(), channel, DeliveryMode::Plain, epoch());
    push(&mut stream, b"last");
    push(&mut stream, b"one too many");
    let sent = frames(&mut stream, epoch());
    assert_eq!(sent.len(), 1);
    assert_eq!(data(&sent[0]).seq, u32::MAX - 1);
    assert_eq!(stream.poll_timeout(), Some(epoch()));
    assert_eq!(
        stream.handle_timeout(epoch()),
        Err(RelayStreamError::Exhausted)
    );
}

#[test]
fn plain_stream_ends_with_its_connection() {
    let (mut stream, _) = stream_pair(DeliveryMode::Plain);
    stream.handle_disconnect(epoch());
    stream.handle_reconnect(epoch());
    assert_eq!(
        stream.handle_timeout(epoch()),
        Err(RelayStreamError::Disconnected)
    );
}

#[test]
fn invalid_message_is_not_queued() {
    let (mut a, mut b) = stream_pair(DeliveryMode::Plain);
    push(&mut a, b"before");
    assert_eq!(a.push(|_| {}), Err(StreamPushError::Empty));
    assert_eq!(
        a.push(|buffer| buffer.resize(buffer.len() + MESSAGE_BYTES + 1, 0)),
        Err(StreamPushError::TooLong(MESSAGE_BYTES + 1))
    );
    push(&mut a, b"after");
    for frame in frames(&mut a, epoch()) {
        b.handle_frame(frame, epoch()).unwrap();
    }
    assert_eq!(messages(&mut b), [&b"before"[..], b"after"]);
}
