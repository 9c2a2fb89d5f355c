//! Entry points of the fuzz targets `relay_frame` and `noise_record`.
//!
//! Invariants checked: a decoded frame is equal after re-encoding, and its route agrees with it; a
//! stream never panics, delivers only sealed bytes, and stays ended after an error. The targets and
//! their corpora are in `fuzz/`.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::{
    frame::{FrameBody, FrameRoute, NOTHING_RECEIVED, RelayFrame, SealedRecord, StreamId},
    handshake::{NoiseChannel, RecordSealer},
    limits,
    stream::{DeliveryMode, RelayStream, RelayStreamError},
};

/// Decodes bytes as a frame.
///
/// # Panics
/// Panics when decoder, encoder and route disagree.
pub fn relay_frame(bytes: &[u8]) {
    let route = FrameRoute::peek(bytes);
    let Ok(frame) = RelayFrame::decode(Bytes::copy_from_slice(bytes)) else {
        return;
    };
    let Ok(route) = route else {
        panic!("valid frame has no route");
    };
    assert_eq!(route.stream_id, frame.stream_id.as_str());
    assert_eq!(route.kind, frame.body.kind());
    let reencoded = frame.encode();
    assert_eq!(
        RelayFrame::decode(reencoded),
        Ok(frame),
        "re-encoded frame differs"
    );
}

/// Runs a program: the first byte selects the delivery mode. Each instruction is an operation and
/// an operand, and for records as many bytes as the operand says.
///
/// # Panics
/// Panics when the stream delivers bytes that the peer did not seal, changes its error, or makes a
/// driver spin.
pub fn noise_record(program: &[u8]) {
    let Some((&mode, mut program)) = program.split_first() else {
        return;
    };
    let mut run = NoiseProgram::new(if mode.is_multiple_of(2) {
        DeliveryMode::Plain
    } else {
        DeliveryMode::Reliable
    });
    while let [operation, operand, rest @ ..] = program {
        program = rest;
        match operation % 12 {
            0..=2 => {
                let len = usize::from(*operand).min(program.len());
                let (plaintext, rest) = program.split_at(len);
                program = rest;
                run.seal(plaintext, *operation);
            }
            3 | 4 => run.send(*operand),
            5 => run.send_tampered(*operand),
            6 => run.acknowledge(*operand),
            7 => run.push(*operand),
            8 => run.advance_time(*operand),
            9 => run.reconnect(*operand),
            10 => run.resume(*operand),
            _ => run.receive_messages(),
        }
        run.check();
    }
    run.receive_messages();
}

struct NoiseProgram {
    stream: RelayStream,
    id: StreamId,
    now: Instant,
    peer: RecordSealer,
    records: Vec<SealedRecord>,
    /// The peer's byte stream, as sealed.
    bytes: Vec<u8>,
    /// Number of these bytes delivered as messages.
    delivered: usize,
    /// Frames sent by the stream, by record number.
    sent: BTreeMap<u32, Bytes>,
    error: Option<RelayStreamError>,
}

impl NoiseProgram {
    #[expect(clippy::disallowed_methods, reason = "origin of the program's clock")]
    fn new(delivery: DeliveryMode) -> Self {
        let now = Instant::now();
        let (near, far) = NoiseChannel::pair();
        let Ok(id) = StreamId::new("fuzz") else {
            panic!("valid stream id");
        };
        Self {
            stream: RelayStream::new(id.clone(), near, delivery, now),
            id,
            now,
            peer: far.sealer,
            records: Vec::new(),
            bytes: Vec::new(),
            delivered: 0,
            sent: BTreeMap::new(),
            error: None,
        }
    }

    fn seal(&mut self, plaintext: &[u8], position: u8) {
        let mut payload = plaintext.to_vec();
        let seq = self.peer.next_seq();
        if self.peer.seal(&mut payload, 0).is_err() {
            return;
        }
        self.bytes.extend_from_slice(plaintext);
        // Mostly whole messages, otherwise an index within a few segments.
        let count = u32::from(position / 12 % 4) + 1;
        self.records.push(SealedRecord {
            seq,
            segment_index: u32::from(position / 48) % count,
            segment_count: count,
            payload: payload.into(),
        });
    }

    fn send(&mut self, which: u8) {
        if let Some(data) = self.records.get(usize::from(which)) {
            self.handle(FrameBody::Data(data.clone()));
        }
    }

    fn send_tampered(&mut self, which: u8) {
        if let Some(data) = self.records.get(usize::from(which)) {
            let mut data = data.clone();
            let mut payload = data.payload.to_vec();
            payload[usize::from(which) % data.payload.len()] ^= 0x80;
            data.payload = payload.into();
            self.handle(FrameBody::Data(data));
        }
    }

    fn acknowledge(&mut self, operand: u8) {
        let frame = RelayFrame {
            ack: u32::from(operand & 0x1f).wrapping_sub(1),
            ack_bits: u32::from(operand >> 5),
            ..RelayFrame::new(self.id.clone(), FrameBody::Ack)
        };
        self.handle_frame(frame);
    }

    fn push(&mut self, len: u8) {
        let result = self
            .stream
            .push(|buffer| buffer.resize(buffer.len() + usize::from(len), len));
        assert_eq!(result.is_ok(), len > 0);
    }

    fn advance_time(&mut self, operand: u8) {
        self.now += Duration::from_millis(u64::from(operand) * 20);
        let result = self.stream.handle_timeout(self.now);
        self.check_result(result);
        let deadline = self.stream.poll_timeout();
        assert!(
            self.error.is_some() || deadline.is_none_or(|deadline| deadline > self.now),
            "the driver would spin"
        );
    }

    fn reconnect(&mut self, operand: u8) {
        if !operand.is_multiple_of(3) {
            self.stream.handle_disconnect(self.now);
            self.error = self.error.or(self.stream.failed);
        }
        if !operand.is_multiple_of(2) {
            self.stream.handle_reconnect(self.now);
        }
    }

    fn resume(&mut self, operand: u8) {
        self.handle(FrameBody::Resume {
            next_seq: u32::from(operand),
        });
    }

    fn receive_messages(&mut self) {
        while let Some(message) = self.stream.poll_message() {
            let prefix = self.bytes.get(self.delivered..self.delivered + 4);
            let len = u32::try_from(message.len()).unwrap_or(0).to_be_bytes();
            assert_eq!(prefix, Some(&len[..]), "length differs from the sealed one");
            let start = self.delivered + 4;
            let sealed = self.bytes.get(start..start + message.len());
            assert_eq!(
                sealed,
                Some(&message[..]),
                "bytes differ from the sealed ones"
            );
            self.delivered = start + message.len();
        }
        self.error = self.error.or(self.stream.failed);
    }

    fn handle(&mut self, body: FrameBody) {
        let frame = RelayFrame {
            ack: NOTHING_RECEIVED,
            ..RelayFrame::new(self.id.clone(), body)
        };
        self.handle_frame(frame);
    }

    fn handle_frame(&mut self, frame: RelayFrame) {
        let result = self.stream.handle_frame(frame, self.now);
        self.check_result(result);
    }

    fn check_result(&mut self, result: Result<(), RelayStreamError>) {
        if let Some(error) = self.error {
            assert_eq!(result, Err(error), "error changed after the end");
        }
        self.error = result.err();
    }

    /// Sends and checks all frames that are ready.
    fn check(&mut self) {
        while let Some(bytes) = self.stream.poll_frame(self.now) {
            assert!(self.error.is_none(), "frame sent after the end");
            let Ok(frame) = RelayFrame::decode(bytes.clone()) else {
                panic!("stream sent an invalid frame");
            };
            if let FrameBody::Data(data) = frame.body {
                let first = self.sent.entry(data.seq).or_insert(bytes.clone());
                assert_eq!(*first, bytes, "record was sealed twice");
            }
        }
        assert!(self.stream.unacknowledged() <= limits::WINDOW_RECORDS);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn replay(target: &str, run: fn(&[u8])) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
        let files: Vec<_> = fs::read_dir(corpus.join(target))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert!(files.len() > 12, "corpus is missing");
        for file in files {
            run(&fs::read(file.path()).unwrap());
        }
    }

    #[test]
    fn frame_corpus_is_replayed() {
        replay("relay_frame", relay_frame);
    }

    #[test]
    fn record_corpus_is_replayed() {
        replay("noise_record", noise_record);
    }

    #[test]
    fn random_programs_uphold_the_invariants() {
        // Splitmix64: a small random generator in place of the fuzzer.
        let mut state = 1u64;
        let mut byte = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed >> 56) as u8
        };
        for round in 0..3000 {
            let program: Vec<u8> = (0..round % 200)
                // Small operands select existing records.
                .map(|at| if at % 2 == 0 { byte() % 16 } else { byte() })
                .collect();
            noise_record(&program);
            relay_frame(&program);
        }
    }
}
