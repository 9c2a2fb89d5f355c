//! A harness and its relay in one: it sends frames to the executor directly.

use std::time::Duration;

use bytes::Bytes;
use exec_relay::{
    frame::{FrameBody, RelayFrame, SealedRecord, StreamId},
    handshake::{HandshakeScope, NoiseChannel, NoiseInitiator},
    identity::{NoiseIdentity, NoisePublicKey},
};
use exec_transport::websocket::socket::{BinarySocket, RawMessage};
use tokio::time::timeout;

/// Longer than anything a test waits for, in paused time.
const PATIENCE: Duration = Duration::from_secs(300);

/// The other end of an executor's websocket.
pub(crate) struct RelayPeer {
    socket: BinarySocket,
}

/// A stream that the executor accepted. It acknowledges nothing, like stock harnesses.
pub(crate) struct RelayStream {
    pub(crate) id: StreamId,
    channel: NoiseChannel,
    received: u32,
}

/// What a harness must know about the executor.
pub(crate) struct ExecutorInfo {
    pub(crate) key: NoisePublicKey,
    pub(crate) registration: String,
}

impl RelayPeer {
    pub(crate) fn new(socket: BinarySocket) -> Self {
        Self { socket }
    }

    pub(crate) async fn send(&mut self, frame: &RelayFrame) {
        self.socket.writer.push(frame.encode());
        self.socket.writer.flush().await.unwrap();
    }

    pub(crate) async fn receive(&mut self) -> RelayFrame {
        let next = timeout(PATIENCE, self.socket.reader.next()).await;
        let Some(RawMessage::Binary(message)) = next.expect("a frame").unwrap() else {
            panic!("executor disconnected or sent a text message");
        };
        RelayFrame::decode(message).unwrap()
    }

    /// Sends the first handshake message.
    pub(crate) async fn start_handshake(
        &mut self,
        known: &ExecutorInfo,
        id: &str,
        identity: &NoiseIdentity,
    ) -> NoiseInitiator {
        let stream_id = StreamId::new(id).unwrap();
        let scope = HandshakeScope {
            environment_id: "env-1",
            registration_id: &known.registration,
            stream_id: id,
        };
        let (initiator, message) =
            NoiseInitiator::start(identity, &known.key, scope, "authorization-1").unwrap();
        let resume = FrameBody::Resume { next_seq: 0 };
        self.send(&RelayFrame::new(stream_id.clone(), resume)).await;
        self.send(&RelayFrame::new(stream_id, FrameBody::Handshake(message)))
            .await;
        initiator
    }

    /// Processes the handshake response.
    pub(crate) async fn finish_handshake(
        &mut self,
        id: &str,
        initiator: NoiseInitiator,
    ) -> RelayStream {
        let id = StreamId::new(id).unwrap();
        let answer = self.receive().await;
        assert_eq!(answer.stream_id, id);
        let FrameBody::Handshake(message) = answer.body else {
            panic!("handshake refused: {answer:?}");
        };
        RelayStream {
            id,
            channel: initiator.finish(&message).unwrap(),
            received: 0,
        }
    }

    /// Sends a message on a stream, in as many records as needed.
    pub(crate) async fn send_message(&mut self, stream: &mut RelayStream, message: &[u8]) {
        let length = u32::try_from(message.len()).unwrap();
        let framed = [&length.to_be_bytes(), message].concat();
        for piece in framed.chunks(exec_relay::limits::RECORD_BYTES) {
            let seq = stream.channel.sealer.next_seq();
            let mut record = piece.to_vec();
            stream.channel.sealer.seal(&mut record, 0).unwrap();
            let data = SealedRecord {
                seq,
                segment_index: 0,
                segment_count: 1,
                payload: record.into(),
            };
            let frame = RelayFrame::new(stream.id.clone(), FrameBody::Data(data));
            self.send(&frame).await;
        }
    }

    /// Waits for a message on a stream that has no other traffic.
    pub(crate) async fn receive_message(&mut self, stream: &mut RelayStream) -> Vec<u8> {
        let mut text = Vec::new();
        loop {
            let frame = self.receive().await;
            assert_eq!(frame.stream_id, stream.id);
            let FrameBody::Data(data) = frame.body else {
                panic!("not a data frame: {frame:?}");
            };
            assert_eq!(data.seq, stream.received);
            stream.received += 1;
            let opened: Bytes = stream.channel.opener.open(data.seq, data.payload).unwrap();
            text.extend_from_slice(&opened);
            if let Some((length, message)) = text.split_first_chunk() {
                let length = usize::try_from(u32::from_be_bytes(*length)).unwrap();
                if message.len() == length {
                    return message.to_vec();
                }
            }
        }
    }

    /// Waits for a stream reset, the only kind of reset that executors send.
    pub(crate) async fn expect_reset(&mut self, id: &str) {
        let frame = self.receive().await;
        assert_eq!(frame.stream_id.as_str(), id);
        let reason = "noise_relay_protocol_error".to_owned();
        assert_eq!(frame.body, FrameBody::Reset { reason });
    }
}
