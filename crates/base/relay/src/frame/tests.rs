//! The codec against the schema, the bytes of stock endpoints, and itself.

use std::path::Path;

use bytes::Bytes;
use proptest::{option, prelude::*};

use super::*;
use super::{FrameKind, FrameRoute};
use crate::limits;

const ID: &str = "11111111-2222-4333-8444-555555555555";

fn id() -> StreamId {
    StreamId::new(ID).unwrap()
}

/// Returns a frame that starts with version 1 and a stream id.
fn envelope(rest: &[u8]) -> Bytes {
    [b"\x08\x01\x12\x24", ID.as_bytes(), rest].concat().into()
}

fn decode_error(rest: &[u8]) -> RelayFrameError {
    RelayFrame::decode(envelope(rest)).unwrap_err()
}

prop_compose! {
    fn any_data()(
        seq: u32,
        count in 1..=limits::MAX_SEGMENTS,
        position: prop::sample::Index,
        payload in prop::collection::vec(any::<u8>(), 1..400),
    ) -> SealedRecord {
        SealedRecord {
            seq,
            segment_index: u32::try_from(position.index(count as usize)).unwrap(),
            segment_count: count,
            payload: payload.into(),
        }
    }
}

fn any_body() -> impl Strategy<Value = FrameBody> {
    prop_oneof![
        any_data().prop_map(FrameBody::Data),
        Just(FrameBody::Ack),
        any::<u32>().prop_map(|next_seq| FrameBody::Resume { next_seq }),
        ".{1,80}".prop_map(|reason| FrameBody::Reset { reason }),
        Just(FrameBody::Heartbeat),
        prop::collection::vec(any::<u8>(), 1..400)
            .prop_map(|bytes| FrameBody::Handshake(bytes.into())),
    ]
}

prop_compose! {
    fn any_frame()(
        stream_id in "[!-~]{1,40}",
        ack: u32,
        ack_bits: u32,
        body in any_body(),
        trace in option::of((option::of(".{0,20}"), option::of(".{0,20}"))),
    ) -> RelayFrame {
        let trace = trace.map(|(parent, state)| FrameTrace { parent, state });
        RelayFrame {
            stream_id: StreamId::new(&stream_id).unwrap(),
            ack,
            ack_bits,
            body,
            trace: trace.filter(|trace| *trace != FrameTrace::default()),
        }
    }
}

proptest! {
    #[test]
    fn frames_round_trip_and_match_their_route(frame in any_frame()) {
        let bytes = frame.encode();
        let route = FrameRoute::peek(&bytes).unwrap();
        prop_assert_eq!(route.stream_id, frame.stream_id.as_str());
        prop_assert_eq!(route.kind, frame.body.kind());
        prop_assert_eq!(RelayFrame::decode(bytes.clone()), Ok(frame));
    }

    #[test]
    fn hand_written_header_matches_the_schema_encoder(
        data in any_data(),
        stream_id in "[!-~]{1,200}",
        ack in prop_oneof![Just(0), Just(NOTHING_RECEIVED), any::<u32>()],
        ack_bits in prop_oneof![Just(0), any::<u32>()],
    ) {
        let frame = RelayFrame {
            ack,
            ack_bits,
            ..RelayFrame::new(StreamId::new(&stream_id).unwrap(), FrameBody::Data(data.clone()))
        };
        let header = DataHeader {
            stream_id: &frame.stream_id,
            ack,
            ack_bits,
            seq: data.seq,
            segment_index: data.segment_index,
            segment_count: data.segment_count,
        };
        let mut bytes = header.start(data.payload.len());
        let capacity = bytes.capacity();
        bytes.extend_from_slice(&data.payload);
        prop_assert_eq!(bytes.capacity(), capacity, "one allocation");
        prop_assert_eq!(bytes, frame.encode());
    }

    #[test]
    fn corrupted_frame_is_refused_or_matches_its_route(
        frame in any_frame(),
        keep: prop::sample::Index,
        change in option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut bytes = frame.encode().to_vec();
        bytes.truncate(keep.index(bytes.len() + 1));
        if let Some((at, value)) = change && !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let route = FrameRoute::peek(&bytes);
        if let Ok(frame) = RelayFrame::decode(bytes.clone().into()) {
            let route = route.unwrap();
            prop_assert_eq!(route.stream_id, frame.stream_id.as_str());
            prop_assert_eq!(route.kind, frame.body.kind());
        }
    }
}

#[test]
fn frames_match_the_bytes_of_stock_endpoints() {
    let resume = RelayFrame::new(id(), FrameBody::Resume { next_seq: 0 });
    assert_eq!(resume.encode(), envelope(b"\x3a\x00"));
    assert_eq!(resume.encode().len(), 42);
    let handshake = RelayFrame::new(id(), FrameBody::Handshake(Bytes::from_static(b"abc")));
    assert_eq!(handshake.encode(), envelope(b"\x52\x05\x0a\x03abc"));
    let mut data = SealedRecord {
        seq: 0,
        segment_index: 0,
        segment_count: 1,
        payload: Bytes::from_static(b"abc"),
    };
    let first = RelayFrame::new(id(), FrameBody::Data(data.clone()));
    assert_eq!(first.encode(), envelope(b"\x2a\x07\x18\x01\x22\x03abc"));
    data.seq = 5;
    let sixth = RelayFrame::new(id(), FrameBody::Data(data));
    assert_eq!(
        sixth.encode(),
        envelope(b"\x2a\x09\x08\x05\x18\x01\x22\x03abc")
    );
    let reset = RelayFrame::new(
        id(),
        FrameBody::Reset {
            reason: RESET_PROTOCOL_ERROR.to_owned(),
        },
    );
    assert_eq!(
        reset.encode(),
        envelope(b"\x42\x1c\x0a\x1anoise_relay_protocol_error")
    );
    for frame in [resume, handshake, first, sixth, reset] {
        assert!(frame.is_plain());
        assert_eq!(RelayFrame::decode(frame.encode()), Ok(frame));
    }
}

#[test]
fn announcement_acknowledges_no_record() {
    let frame = RelayFrame::announcement(id());
    assert_eq!(
        frame.encode(),
        envelope(b"\x18\xff\xff\xff\xff\x0f\x32\x00")
    );
    assert!(frame.is_announcement());
    assert!(!RelayFrame::new(id(), FrameBody::Ack).is_announcement());
}

#[test]
fn payload_is_an_unshared_slice_of_the_message() {
    let bytes = envelope(b"\x2a\x07\x18\x01\x22\x03abc");
    let end = bytes.as_ptr_range().end;
    let frame = RelayFrame::decode(bytes).unwrap();
    let FrameBody::Data(data) = frame.body else {
        panic!("expected a record");
    };
    assert_eq!(data.payload.as_ptr_range().end, end);
    assert!(data.payload.is_unique(), "record cannot be opened in place");
}

#[test]
fn fields_are_accepted_in_any_order_and_unknown_ones_skipped() {
    let mut bytes = b"\x32\x00\xa8\x06\x07\xb2\x06\x01x\xa1\x06\x01\x02\x03\x04\x05\x06\x07\x08\
        \xad\x06\x01\x02\x03\x04\x12\x01s"
        .to_vec();
    bytes.extend_from_slice(b"\x08\x01");
    let frame = RelayFrame::decode(bytes.into()).unwrap();
    assert_eq!(
        frame,
        RelayFrame::new(StreamId::new("s").unwrap(), FrameBody::Ack)
    );
}

#[test]
fn last_of_two_bodies_wins() {
    let bytes = envelope(b"\x3a\x00\x4a\x00");
    assert_eq!(FrameRoute::peek(&bytes).unwrap().kind, FrameKind::Heartbeat);
    assert_eq!(
        RelayFrame::decode(bytes).unwrap().body,
        FrameBody::Heartbeat
    );
}

#[test]
fn invalid_frames_are_refused() {
    assert_eq!(decode_error(b""), RelayFrameError::NoBody);
    assert_eq!(
        decode_error(b"\x08\x02\x32\x00"),
        RelayFrameError::Version(2)
    );
    assert_eq!(
        decode_error(b"\x12\x02 \t\x32\x00"),
        RelayFrameError::StreamId(StreamIdError::Blank)
    );
    let long = [&b"\x12\x81\x02"[..], &[b'x'; 257], b"\x32\x00"].concat();
    assert_eq!(
        decode_error(&long),
        RelayFrameError::StreamId(StreamIdError::TooLong(257))
    );
    assert_eq!(
        decode_error(b"\x12\x01\xff\x32\x00"),
        RelayFrameError::Malformed
    );
    assert_eq!(decode_error(b"\x52\x00"), RelayFrameError::NoPayload);
    assert_eq!(
        decode_error(b"\x2a\x02\x18\x01"),
        RelayFrameError::NoPayload
    );
    assert_eq!(decode_error(b"\x42\x00"), RelayFrameError::NoReason);
    for (index, count) in [(0, 0), (1, 1), (2, 2), (0, limits::MAX_SEGMENTS + 1)] {
        let data = SealedRecord {
            seq: 0,
            segment_index: index,
            segment_count: count,
            payload: Bytes::from_static(b"x"),
        };
        let frame = RelayFrame::new(id(), FrameBody::Data(data));
        assert_eq!(
            RelayFrame::decode(frame.encode()),
            Err(RelayFrameError::Segments { index, count })
        );
    }
    // Truncated, of a wrong type, a group, and garbage.
    for rest in [
        &b"\x2a\x07\x18\x01\x22\x03ab"[..],
        b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x30\x00",
        b"\x0a\x00\x32\x00",
        b"\xa3\x06\xa4\x06\x32\x00",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x00\x00\x32\x00",
    ] {
        assert_eq!(decode_error(rest), RelayFrameError::Malformed, "{rest:x?}");
    }
    assert_eq!(
        RelayFrame::decode(Bytes::new()),
        Err(RelayFrameError::Version(0))
    );
}

/// Generates the types from the schema.
fn generate_types() -> String {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let file = schema.join("codex.exec_server.relay.v1.proto");
    let descriptors = protox::compile([file], [schema]).unwrap();
    let out = tempfile::tempdir().unwrap();
    prost_build::Config::new()
        .bytes(["."])
        .out_dir(out.path())
        .compile_fds(descriptors)
        .unwrap();
    std::fs::read_to_string(out.path().join("codex.exec_server.relay.v1.rs")).unwrap()
}

#[test]
fn generated_types_match_the_schema() {
    // When the schema changes, replace the file with the output of `generate_types`.
    assert_eq!(include_str!("proto.rs"), generate_types());
}
